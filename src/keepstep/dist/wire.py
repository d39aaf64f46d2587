"""Bytes from rank to rank, in pieces. For one thread at a time: the group is used for nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist

from keepstep.dist.world import DEFAULT_TIMEOUT

PIECE_BYTES = 4 * 1024 * 1024

T = TypeVar("T", "Outgoing", "Incoming")


class Outgoing(Protocol):
    """What is sent. It may not raise: who receives it would wait for what never comes."""

    size: int

    def fill(self, offset: int, piece: memoryview) -> None:
        """Put the next bytes into `piece`."""


class Incoming(Protocol):
    """What takes bytes. It may not raise either, as long as bytes come."""

    size: int

    def take(self, piece: memoryview) -> None:
        """The next bytes."""


class Wire:
    """Point to point over a gloo group of its own, so that it meets no collective. All ranks make it together.

    Args:
        timeout: how long a piece is waited for.
    """

    def __init__(self, timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        # Held as an object: it outlives `destroy_process_group` as long as a save is under way.
        self._group = dist.new_group(backend="gloo", timeout=timeout)

    def exchange(self, sends: Mapping[int, Sequence[Outgoing]], takes: Mapping[int, Sequence[Incoming]]) -> None:
        """Send to and take from several ranks at once, a piece of each at a time.

        Args:
            sends: for each rank what it gets, in the order in which it takes it.
            takes: from each rank what it sends, in its order, with the same sizes.

        Raises:
            RuntimeError: a rank is gone, or silent for longer than the timeout.
        """
        leaving = {rank: _pieces(things) for rank, things in sends.items()}
        coming = {rank: _pieces(things) for rank, things in takes.items()}
        space = {key: torch.empty(PIECE_BYTES, dtype=torch.uint8) for key in _keys(leaving, coming)}
        while leaving or coming:
            works, taken = [], []
            # All of a round are posted before one is waited for: two ranks that send to each other do not block.
            for rank, source in list(coming.items()):
                if (piece := next(source, None)) is None:
                    del coming[rank]
                    continue
                buffer = space["from", rank][: piece[2]]
                works.append(self._group.recv([buffer], rank, 0))
                taken.append((piece[0], buffer))
            for rank, parts in list(leaving.items()):
                if (part := next(parts, None)) is None:
                    del leaving[rank]
                    continue
                buffer = space["to", rank][: part[2]]
                part[0].fill(part[1], buffer.numpy().data)
                works.append(self._group.send([buffer], rank, 0))
            for work in works:
                work.wait()
            for thing, buffer in taken:
                thing.take(buffer.numpy().data)


def _keys(leaving: Mapping[int, object], coming: Mapping[int, object]) -> list[tuple[str, int]]:
    return [*(("to", rank) for rank in leaving), *(("from", rank) for rank in coming)]


def _pieces(things: Sequence[T]) -> Iterator[tuple[T, int, int]]:
    for thing in things:
        for offset in range(0, thing.size, PIECE_BYTES):
            yield thing, offset, min(PIECE_BYTES, thing.size - offset)
