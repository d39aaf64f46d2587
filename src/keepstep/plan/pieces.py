"""Where two sets of shards hold the same elements of one tensor: pure arithmetic on boxes and strides."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True)
class Shard:
    """A box of a tensor and where it lies, row by row.

    Attributes:
        at, shape: where it begins in the whole tensor, and how long it is in each dimension.
        file: the number of its file among those of its side.
        data: where its bytes begin in the file.
    """

    at: tuple[int, ...]
    shape: tuple[int, ...]
    file: int
    data: int


@dataclass(frozen=True)
class Piece:
    """A box of elements that lies in a shard of each side. All counts are of elements.

    Attributes:
        shape: of the box.
        a, b: its first element, from the begin of the shard.
        strides_a, strides_b: how far apart neighbours are there, in each dimension.
    """

    shape: tuple[int, ...]
    a: int
    strides_a: tuple[int, ...]
    b: int
    strides_b: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements the box has."""
        return math.prod(self.shape)

    @property
    def span_a(self) -> int:
        """From its first element to behind its last, in the shard of `a`."""
        return _span(self.shape, self.strides_a)

    @property
    def span_b(self) -> int:
        """The same in the shard of `b`."""
        return _span(self.shape, self.strides_b)


def pairs(a: Sequence[Shard], b: Sequence[Shard]) -> Iterator[tuple[Shard, Shard]]:
    """Every two shards that share elements.

    Of the shards of a thousand ranks only neighbours are looked at, in the dimension that has most of them.
    """
    places = [set(at) for at in zip(*(shard.at for shard in b), strict=True)]
    dim = max(range(len(places)), key=lambda d: len(places[d]), default=None)
    row = sorted(b, key=lambda shard: shard.at[dim]) if dim is not None else list(b)
    begins = [shard.at[dim] for shard in row] if dim is not None else []
    longest = max((shard.shape[dim] for shard in row), default=0) if dim is not None else 0
    for one in a:
        near = row
        if dim is not None:
            first, last = one.at[dim] - longest + 1, one.at[dim] + one.shape[dim]
            near = row[bisect_left(begins, first) : bisect_left(begins, last)]
        for other in near:
            if all(length > 0 for length in _overlap(one, other)[1]):
                yield one, other


def overlapping(shards: Sequence[Shard]) -> bool:
    """Whether an element lies in two of them."""
    return sum(1 for _ in pairs(shards, shards)) != sum(1 for shard in shards if 0 not in shard.shape)


def pieces(a: Shard, b: Shard, *, gap: int, longest: int) -> Iterator[Piece]:
    """Cut what two shards share into boxes, each to be read in one go from either side.

    Args:
        a, b: the shards.
        gap: rows are read together, with what is between them, if that is no more elements.
        longest: the most elements of a span.
    """
    at, shape = _overlap(a, b)
    strides_a, strides_b = _strides(a.shape), _strides(b.shape)
    base_a = sum((x - y) * s for x, y, s in zip(at, a.at, strides_a, strict=True))
    base_b = sum((x - y) * s for x, y, s in zip(at, b.at, strides_b, strict=True))
    split, rows = _cut(shape, (strides_a, strides_b), gap, longest)
    if not split:
        yield Piece(shape, base_a, strides_a, base_b, strides_b)
        return
    own_a, own_b = strides_a[split - 1 :], strides_b[split - 1 :]
    for index in product(*(range(n) for n in shape[: split - 1]), range(0, shape[split - 1], rows)):
        begin_a = base_a + sum(i * s for i, s in zip(index, strides_a, strict=False))
        begin_b = base_b + sum(i * s for i, s in zip(index, strides_b, strict=False))
        count = min(rows, shape[split - 1] - index[-1])
        yield Piece((count, *shape[split:]), begin_a, own_a, begin_b, own_b)


def _cut(shape: tuple[int, ...], strides: Sequence[tuple[int, ...]], gap: int, longest: int) -> tuple[int, int]:
    """The number of outer dimensions that are walked through, and how many rows of the last of them go together."""
    covered = [1] * len(strides)
    for dim in reversed(range(len(shape))):
        apart = max(own[dim] - done for own, done in zip(strides, covered, strict=True)) if shape[dim] > 1 else 0
        longer = [(shape[dim] - 1) * own[dim] + done for own, done in zip(strides, covered, strict=True)]
        if apart > gap:
            return dim + 1, 1
        if max(longer) > longest:
            fit = [(longest - done) // own[dim] + 1 for own, done in zip(strides, covered, strict=True)]
            return dim + 1, max(1, min(fit))
        covered = longer
    return 0, 1


def _overlap(a: Shard, b: Shard) -> tuple[tuple[int, ...], tuple[int, ...]]:
    at = tuple(map(max, a.at, b.at))
    ends = (min(x + m, y + n) for x, m, y, n in zip(a.at, a.shape, b.at, b.shape, strict=True))
    return at, tuple(end - begin for begin, end in zip(at, ends, strict=True))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
