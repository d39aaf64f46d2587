"""Which bytes of a stored shard a wanted piece of a tensor lies in: pure arithmetic on boxes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

Index = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """A part of a tensor: where it begins in each dimension, and how long it is there."""

    at: Index
    shape: Index

    @property
    def elements(self) -> int:
        """How many elements it has."""
        count = 1
        for length in self.shape:
            count *= length
        return count


def overlap(first: Box, second: Box) -> Box | None:
    """What both hold, None when that is nothing."""
    at = tuple(max(a, b) for a, b in zip(first.at, second.at, strict=True))
    ends = [min(a + m, b + n) for a, m, b, n in zip(first.at, first.shape, second.at, second.shape, strict=True)]
    shape = tuple(end - begin for begin, end in zip(at, ends, strict=True))
    return Box(at, shape) if all(length > 0 for length in shape) else None


@dataclass(frozen=True)
class Span:
    """A run of elements of a row-major tensor that is read in one piece.

    Attributes:
        offset, length: in elements, from the tensor's first.
        at, shape: the box that it holds, of the region asked for; `at` counts from the region's begin.
        strides: of the box inside the run.
    """

    offset: int
    length: int
    at: Index
    shape: Index
    strides: Index


def spans(whole: Sequence[int], region: Box, *, gap: int, longest: int) -> Iterator[Span]:
    """Cut a region of a row-major tensor into runs.

    Pieces of the region that stand no more than `gap` elements apart are read together with what is between them;
    no run is longer than about `longest` elements unless one row is.

    Args:
        whole: the tensor's shape.
        region: the part of it.
        gap, longest: in elements.
    """
    strides, step = [], 1
    for length in reversed(whole):
        strides.append(step)
        step *= length
    strides.reverse()
    dims = len(whole)
    covered, split = 1, dims
    for dim in reversed(range(dims)):
        count, apart = region.shape[dim], strides[dim] - covered
        longer = (count - 1) * strides[dim] + covered
        if count > 1 and (apart > gap or longer > longest):
            break
        covered, split = longer, dim
    outer = region.shape[:split]
    # The innermost dimension that is split may still go in groups of rows.
    rows = 1
    if split and strides[split - 1] - covered <= gap:
        rows = max(1, min(outer[-1], (longest - covered) // strides[split - 1] + 1))
    inner_shape, inner_strides = region.shape[split:], tuple(strides[split:])
    base = sum(a * s for a, s in zip(region.at, strides, strict=True))
    if not split:
        yield Span(base, covered, (0,) * dims, inner_shape, inner_strides)
        return
    ranges = [range(n) for n in outer[:-1]] + [range(0, outer[-1], rows)]
    for index in product(*ranges):
        count = min(rows, outer[-1] - index[-1])
        offset = base + sum(i * s for i, s in zip(index, strides, strict=False))
        shape = (1,) * (split - 1) + (count, *inner_shape)
        yield Span(
            offset,
            (count - 1) * strides[split - 1] + covered,
            (*index, *(0 for _ in inner_shape)),
            shape,
            (*strides[:split], *inner_strides),
        )


def slabs(shape: Sequence[int], longest: int) -> Iterator[Box]:
    """Cut a tensor into boxes whose elements follow each other, row by row, from the first to the last.

    Args:
        shape: the tensor's.
        longest: elements that a box may have.
    """
    dims = len(shape)
    inner, split = 1, dims
    while split and inner * shape[split - 1] <= longest:
        split -= 1
        inner *= shape[split]
    if not split:
        if inner:
            yield Box((0,) * dims, tuple(shape))
        return
    # Whole of the dimensions from `split` on; of the one before it, as many rows as may be.
    rows, rest = max(1, longest // max(1, inner)), tuple(shape[split:])
    for index in product(*(range(n) for n in shape[: split - 1]), range(0, shape[split - 1], rows)):
        count = min(rows, shape[split - 1] - index[-1])
        yield Box((*index, *(0 for _ in rest)), (1,) * (split - 1) + (count, *rest))
