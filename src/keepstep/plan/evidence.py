"""What the digests of blocks alone tell of two ranges of bytes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Range = tuple[int, int]


@dataclass(frozen=True)
class Digests:
    """The digests of a file's blocks, joined. Empty when it has none.

    Attributes:
        block: bytes of a block.
        width: bytes of a digest.
    """

    joined: bytes
    block: int
    width: int

    def of(self, first: int, count: int) -> bytes:
        """The digests of `count` blocks."""
        return self.joined[first * self.width : (first + count) * self.width]


@dataclass(frozen=True)
class Verdict:
    """What digests tell.

    `equal` is None where they cannot tell; then `open` are the ranges to be read, from the begin of what is compared.
    """

    equal: bool | None
    open: tuple[Range, ...] = ()


def judge(a: Digests, begin_a: int, b: Digests, begin_b: int, size: int) -> Verdict:
    """Compare `size` bytes that begin at `begin_a` in one file and at `begin_b` in the other.

    Blocks that lie in the range as a whole decide. At its ends a block also holds what lies beside the range: equal
    digests tell that the range is equal there, others tell nothing.
    """
    if not _aligned(a, begin_a, b, begin_b):
        return Verdict(None, ((0, size),))
    block = a.block
    first_a, first_b = begin_a // block, begin_b // block
    count = -(-(begin_a + size) // block) - first_a
    own_a, own_b = a.of(first_a, count), b.of(first_b, count)
    if own_a == own_b:
        return Verdict(True)
    head = -begin_a % block
    low = 1 if head else 0
    high = (begin_a + size) // block - first_a
    width = a.width
    if high > low and own_a[low * width : high * width] != own_b[low * width : high * width]:
        return Verdict(False)
    if high <= low:
        # No whole block: one or two that the range shares with others.
        ends = [
            (max(0, (first_a + i) * block - begin_a), min(size, (first_a + i + 1) * block - begin_a), i)
            for i in range(count)
        ]
    else:
        ends = [(0, head, 0)] * low
        ends += [((first_a + high) * block - begin_a, size, high)] * (count - high)
    differ = [(begin, end) for begin, end, i in ends if own_a[i * width :][:width] != own_b[i * width :][:width]]
    return Verdict(None, tuple(differ))


def runs(a: Digests, begin_a: int, b: Digests, begin_b: int, size: int) -> list[tuple[int, int, bool]]:
    """The same range in runs: begin, end, and whether the digests tell that it is equal there."""
    if not _aligned(a, begin_a, b, begin_b):
        return [(0, size, False)]
    block, width = a.block, a.width
    first_a = begin_a // block
    count = -(-(begin_a + size) // block) - first_a
    own_a, own_b = a.of(first_a, count), b.of(begin_b // block, count)
    import numpy as np  # here, so that a comparison by digests does not wait for NumPy

    equal = (_rows(own_a, width) == _rows(own_b, width)).all(axis=1)
    turns = [0, *(np.flatnonzero(equal[1:] != equal[:-1]) + 1).tolist(), count]
    places = [min(max(0, (first_a + turn) * block - begin_a), size) for turn in turns]
    return [(begin, end, bool(equal[turn])) for begin, end, turn in zip(places, places[1:], turns, strict=False)]


def _rows(digests: bytes, width: int) -> "npt.NDArray[np.uint8]":
    import numpy as np

    return np.frombuffer(digests, np.uint8).reshape(-1, width)


def _aligned(a: Digests, begin_a: int, b: Digests, begin_b: int) -> bool:
    same = (a.block, a.width) == (b.block, b.width)
    return bool(a.joined and b.joined) and same and begin_a % a.block == begin_b % b.block
