"""What a tracker has logged, row by row, as series that take no more room than a picture needs."""

import math
from collections.abc import Iterable

from keepstep.plan.report.facts import Row, number, whole
from keepstep.plan.report.series import MOST_POINTS, Point, Series, thin

# Values of one quantity that are held; at more they are thinned to half of it, which is far more than is drawn.
_MOST_HELD = 20_000


class Logged:
    """Rows that were added in any order; of several values at one step the last counts.

    Attributes:
        step: the highest that any row has; None without.
        rows: how many were added.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._found: dict[str, _Growing] = {}
        self.step: int | None = None
        self.rows = 0
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Note a row. One without a step tells nothing."""
        self.rows += 1
        step = whole(row.get("step"))
        if step is None:
            return
        self.step = step if self.step is None else max(step, self.step)
        for name, value in row.items():
            if name != "step" and (known := _value(value)) is not None:
                self._found.setdefault(name, _Growing()).add(step, known)

    def series(self, most: int = MOST_POINTS) -> tuple[Series, ...]:
        """One series for each quantity, in the order in which they first came."""
        return tuple(growing.series(name, most) for name, growing in self._found.items())


class _Growing:
    """Values by step. `_left_out` and `_odd_left_out` count those that were thinned away."""

    def __init__(self) -> None:
        self._values: dict[int, float] = {}
        self._left_out = self._odd_left_out = 0
        self._first_odd: int | None = None

    def add(self, step: int, value: float) -> None:
        self._values[step] = value
        if len(self._values) > _MOST_HELD:
            self._thin()

    def _thin(self) -> None:
        points, odd = self._points()
        kept = thin(points, _MOST_HELD // 2)
        self._first_odd = self._first_of(odd)
        self._left_out += len(points) - len(kept)
        self._odd_left_out += len(odd) - sum(point.value is None for point in kept)
        self._values = {point.step: math.nan if point.value is None else point.value for point in kept}

    def _points(self) -> tuple[list[Point], list[int]]:
        """By step, and the steps without a finite value."""
        values = self._values
        points = [Point(step, values[step] if math.isfinite(values[step]) else None) for step in sorted(values)]
        return points, [point.step for point in points if point.value is None]

    def _first_of(self, odd: list[int]) -> int | None:
        return min((step for step in (self._first_odd, *odd[:1]) if step is not None), default=None)

    def series(self, name: str, most: int) -> Series:
        points, odd = self._points()
        count, odd_count = len(points) + self._left_out, len(odd) + self._odd_left_out
        return Series(name, thin(points, most), count, odd_count, self._first_of(odd))


def _value(value: object) -> float | None:
    """A number; some writers put down NaN and infinities as words, or as null."""
    if value is None or value == "NaN":
        return math.nan
    if value in ("Infinity", "-Infinity"):
        return float(str(value))
    return number(value)
