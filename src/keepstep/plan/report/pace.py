"""How fast a run goes: by its log of saves, or by looking at it again and again."""

from collections import deque
from collections.abc import Sequence
from statistics import median

from keepstep.plan.report.facts import SAVED, STARTED, Row, finite, seconds, whole

_LOOKS = 30
_SPEEDS = 5


class Pace:
    """Steps per second over the last looks."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=_LOOKS)

    def seen(self, seconds: float, step: int | None) -> float | None:
        """Note a look.

        Args:
            seconds: when, by a clock that never goes back.
            step: the newest step then.

        Returns:
            Steps per second; None as long as none was made, and after the run went back.
        """
        if step is None:
            return None
        if self._looks and step < self._looks[-1][1]:
            self._looks.clear()
        self._looks.append((seconds, step))
        (first, began), (last, now) = self._looks[0], self._looks[-1]
        return (now - began) / (last - first) if last > first and now > began else None


def seconds_per_step(rows: Sequence[Row]) -> float | None:
    """The median over the last saves that tell, saving included: by what rows measured, else by their times of day."""
    measured: list[float] = []
    timed: list[float] = []
    before: Row | None = None
    for row in (row for row in rows if row.get("outcome") == SAVED):
        steps, spent = whole(row.get("steps")), seconds(row.get("steps_seconds"))
        if steps and spent is not None:
            measured.append((spent + (seconds(row.get("lost_seconds")) or 0.0)) / steps)
        if before is not None and (span := _span(before, row)) is not None:
            timed.append(span)
        before = row
    spans = measured or timed
    return median(spans[-_SPEEDS:]) if spans else None


def _span(before: Row, row: Row) -> float | None:
    """Seconds a step between two saves of one attempt; None where times or steps do not go forward."""
    times, steps = [finite(one.get("time")) for one in (before, row)], [whole(one.get("step")) for one in (before, row)]
    if before.get("attempt") != row.get("attempt") or None in times or None in steps:
        return None
    span, count = (times[1] or 0.0) - (times[0] or 0.0), (steps[1] or 0) - (steps[0] or 0)
    return span / count if span > 0 and count > 0 else None


def restart_seconds(rows: Sequence[Row]) -> float:
    """What all starts but the first took until their first step was made, as far as rows tell."""
    starts = [seconds(row.get("seconds")) or 0.0 for row in rows if row.get("outcome") == STARTED]
    return sum(starts[1:])
