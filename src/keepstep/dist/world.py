"""The ranks of a job, as far as checkpoints need them: meet, gather, broadcast. On the CPU, beside the training group."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from keepstep.dist.mailbox import LocalMailbox, Mailbox, StoreMailbox
from keepstep.dist.roll import LONGEST_SECONDS, is_silence, lost_text, who_is_lost
from keepstep.errors import RankLostError

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

    def to_main(self, value: T) -> list[T]:
        """Every rank's value on the main process, in the order of ranks; an empty list elsewhere."""

    def from_main(self, values: list[T]) -> T:
        """To each rank the value that the main process has for it; what other ranks pass does not count."""

    def mailbox(self, name: str) -> Mailbox:
        """A place for messages between background threads; the ranks that give the same name share it. No collective."""


class SingleWorld:
    """A job of one process."""

    rank = 0
    size = 1

    def gather(self, value: T) -> list[T]:
        return [value]

    def broadcast(self, value: T) -> T:
        return value

    def to_main(self, value: T) -> list[T]:
        return [value]

    def from_main(self, values: list[T]) -> T:
        return values[0]

    def mailbox(self, name: str) -> Mailbox:
        return LocalMailbox()


class GroupWorld:
    """A job under torch.distributed.

    It has a gloo group of its own: decisions and errors never travel over the training group, whose order of
    collectives belongs to the user, and they need no GPU.

    Every method raises RankLostError where a rank does not answer within the timeout.
    """

    def __init__(self, timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._timeout = timeout.total_seconds()
        self._group = dist.new_group(backend="gloo", timeout=timeout)
        # Held, so that the server in the main process outlives the process group as long as a save is under way.
        self._store = _get_default_store()
        self._meetings = 0
        self._hosts: list[str] = []
        self._hosts = self.gather(host_name())

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        with self._meeting():
            dist.all_gather_object(values, value, group=self._group)
        return values

    def broadcast(self, value: T) -> T:
        box = [value]
        with self._meeting():
            dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def to_main(self, value: T) -> list[T]:
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        with self._meeting():
            dist.gather_object(value, values, dst=0, group=self._group)
        return values or []

    def from_main(self, values: list[T]) -> T:
        box: list[Any] = [None]
        with self._meeting():
            dist.scatter_object_list(box, values if self.rank == 0 else None, src=0, group=self._group)
        own: T = box[0]
        return own

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        """Raises RankLostError where the network fails in the body."""
        self._meetings += 1
        try:
            yield
        except RuntimeError as error:  # all that gloo raises
            if is_silence(str(error)):
                seconds = min(LONGEST_SECONDS, self._timeout / 2)
                missed = who_is_lost(self._store, self.rank, self.size, seconds)
            else:
                # Somebody has ended; the others are still at this meeting, and could not answer.
                missed = [1 - self.rank] if self.size == 2 else []
            text = lost_text(missed, self.rank, self._hosts, str(error))
            rank = missed[0] if missed else 0
            raise RankLostError(text, rank=rank, phase="meeting the other ranks") from error

    def mailbox(self, name: str) -> Mailbox:
        return StoreMailbox(self._store, name)


def current_world(timeout: timedelta = DEFAULT_TIMEOUT) -> World:
    """The ranks that torch.distributed knows of, or a world of one. Collective when it is initialised."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return GroupWorld(timeout)
    return SingleWorld()


def host_name() -> str:
    """This machine's name, for messages."""
    return socket.gethostname()
