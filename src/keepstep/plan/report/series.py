"""Values over steps, thinned so that what one looks for stays: ends, extremes and gaps."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A screen has no more columns than this.
MOST_POINTS = 1500
_PER_BUCKET = 3


@dataclass(frozen=True)
class Point:
    """A value at a step; None where there is no finite one, which breaks the line."""

    step: int
    value: float | None


@dataclass(frozen=True)
class Series:
    """One quantity over steps.

    Attributes:
        name: of the quantity.
        points: by step, thinned.
        count: how many values there were.
        not_finite: how many of them were NaN or infinite; `first_not_finite` is the step of the first.
        last: the newest finite value.
    """

    name: str
    points: tuple[Point, ...]
    count: int
    not_finite: int = 0
    first_not_finite: int | None = None

    @property
    def last(self) -> float | None:
        return next((point.value for point in reversed(self.points) if point.value is not None), None)


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> tuple[Point, ...]:
    """At most so many points. First and last stay, and of each bucket the least, the greatest and one gap.

    Args:
        points: by step.
        most: 5 or more.
    """
    if len(points) <= most:
        return tuple(points)
    inner = points[1:-1]
    buckets = (most - 2) // _PER_BUCKET
    kept = [points[0]]
    for number_ in range(buckets):
        kept += _notable(inner[len(inner) * number_ // buckets : len(inner) * (number_ + 1) // buckets])
    return (*kept, points[-1])


def _notable(bucket: Sequence[Point]) -> list[Point]:
    values = [(point.value, at) for at, point in enumerate(bucket) if point.value is not None]
    gap = next((at for at, point in enumerate(bucket) if point.value is None), None)
    places = {min(values)[1], max(values)[1]} if values else set()
    return [bucket[at] for at in sorted(places | (set() if gap is None else {gap}))]


def series_of(name: str, pairs: Iterable[tuple[int, float]], most: int = MOST_POINTS) -> Series:
    """A series from steps and values in any order; of several at one step the last counts."""
    by_step = dict(pairs)
    steps = sorted(by_step)
    odd = [step for step in steps if not math.isfinite(by_step[step])]
    points = [Point(step, by_step[step] if math.isfinite(by_step[step]) else None) for step in steps]
    return Series(name, thin(points, most), len(points), len(odd), odd[0] if odd else None)
