"""A line of a terminal as a picture of a series."""

from keepstep.plan.report.series import Point, Series

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(series: Series, width: int) -> str:
    """The values, one character for each of `width` equal parts: the last value in it; a blank for a gap."""
    points = series.points
    if not points or width < 1:
        return ""
    parts = min(width, len(points))
    chosen = [_last(points[len(points) * at // parts : len(points) * (at + 1) // parts]) for at in range(parts)]
    known = [value for value in chosen if value is not None]
    if not known:
        return " " * parts
    low, high = min(known), max(known)
    return "".join(" " if value is None else _bar(value, low, high) for value in chosen)


def _last(points: tuple[Point, ...]) -> float | None:
    return next((point.value for point in reversed(points) if point.value is not None), None)


def _bar(value: float, low: float, high: float) -> str:
    # Halves, since a difference of two huge numbers is infinite.
    span = high / 2 - low / 2
    share = (value / 2 - low / 2) / span if span > 0 else 0.0
    return _BARS[min(len(_BARS) - 1, int(share * len(_BARS)))]
