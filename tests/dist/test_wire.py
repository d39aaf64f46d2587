"""Bytes from rank to rank, in pieces that do not fit the sizes."""

from typing import Any

import pytest

from keepstep.dist import wire
from tests.rig import forks


class Sent:
    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def fill(self, offset: int, piece: memoryview) -> None:
        piece[:] = self.data[offset : offset + len(piece)]


class Taken:
    def __init__(self, size: int) -> None:
        self.data, self.size = b"", size

    def take(self, piece: memoryview) -> None:
        self.data += bytes(piece)


def content(source: int, target: int) -> list[bytes]:
    sizes = (0, 1, 999, 1000, 1001, 2500) if source < target else (3001,)
    return [bytes([(source * 7 + target * 3 + i) % 251 for i in range(size)]) for size in sizes]


def test_every_rank_sends_to_every_other_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PIECE_BYTES", 1000)

    def work() -> dict[int, list[bytes]]:
        rank, size = forks.world.rank, forks.world.size
        others = [other for other in range(size) if other != rank]
        line = wire.Wire(forks.TIMEOUT)
        got: dict[int, list[Any]] = {}
        for _ in range(2):
            got = {other: [Taken(len(data)) for data in content(other, rank)] for other in others}
            line.exchange({other: [Sent(data) for data in content(rank, other)] for other in others}, got)
        return {other: [one.data for one in taken] for other, taken in got.items()}

    for rank, got in enumerate(forks.values(work, 3)):
        assert got == {other: content(other, rank) for other in range(3) if other != rank}


def test_a_rank_with_nothing_to_do_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> bytes:
        line, rank = wire.Wire(forks.TIMEOUT), forks.world.rank
        taken = Taken(3)
        line.exchange({1: [Sent(b"abc")]} if rank == 0 else {}, {0: [taken]} if rank == 1 else {})
        return taken.data

    assert forks.values(work, 3) == [b"", b"abc", b""]
