"""The ranks of a job, as far as checkpoints need them: meet, gather, broadcast. On the CPU, beside the training group."""

import socket
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch.distributed as dist

T = TypeVar("T")
# Ranks wait on this group while one of them exports or deletes; a rank that dies is noticed at once all the same.
DEFAULT_TIMEOUT = timedelta(hours=2)


class World(Protocol):
    """All ranks of a job. Every method is collective: all ranks call it in the same order."""

    @property
    def rank(self) -> int:
        """This process's number, 0 to size - 1. Rank 0 is the main process."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def gather(self, value: T) -> list[T]:
        """Every rank's value on every rank, in the order of ranks."""

    def broadcast(self, value: T) -> T:
        """The main process's value on every rank."""


class SingleWorld:
    """A job of one process."""

    rank = 0
    size = 1

    def gather(self, value: T) -> list[T]:
        return [value]

    def broadcast(self, value: T) -> T:
        return value


class GroupWorld:
    """A job under torch.distributed.

    It has a gloo group of its own: decisions and errors never travel over the training group, whose order of
    collectives belongs to the user, and they need no GPU.
    """

    def __init__(self, timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._group = dist.new_group(backend="gloo", timeout=timeout)

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def broadcast(self, value: T) -> T:
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]


def current_world(timeout: timedelta = DEFAULT_TIMEOUT) -> World:
    """The ranks that torch.distributed knows of, or a world of one. Collective when it is initialised."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return GroupWorld(timeout)
    return SingleWorld()


def host_name() -> str:
    """This machine's name, for messages."""
    return socket.gethostname()
