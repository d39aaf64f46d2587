"""What the lines of `saves.jsonl` say of a run: how long its steps and saves take, and how often it failed.

Durations are those that the job has measured with a monotonic clock. The time of day in a line may be anything, also
earlier than that of the line before: it counts only where an older version has measured nothing else, and there as the
median of many differences.
"""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Saves that count for what the next one costs.
RECENT = 20
# Seconds that no single step, save or start takes (a year): something is wrong with the line.
_ABSURD = 365 * 86_400.0
# The same for what is counted, and at the other end: seconds of a step, and between two failures.
_ABSURD_COUNT, _ABSURDLY_SHORT = 10**12, 1e-9
# So many times what the others took is no step time: a machine slept, or a file system hung.
_OUTLIER = 2.0
_ENDS = ("stopped", "finished")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """What recent saves tell, in seconds; None where they tell nothing.

    Attributes:
        saves: how many of them were looked at.
        step_seconds: one step, saves left out.
        save_seconds: what the job loses by a save, with what the writing beside it slows it down, and without what it
            waits for the save before: that depends on the period.
        commit_delay_seconds: from then until the checkpoint exists.
        period_steps: steps between two saves, as the newest attempt that tells had it last.
    """

    saves: int = 0
    step_seconds: float | None = None
    save_seconds: float | None = None
    commit_delay_seconds: float = 0.0
    period_steps: int | None = None


@dataclass(frozen=True)
class Failures:
    """How a run's attempts ended.

    Attributes:
        attempts: that have noted their start.
        failures: how many of them ended otherwise than finished, or stopped on request. The last one counts only if
            that is known.
        running_seconds: how long all of them ran, but for what came after the last save before a crash: no line tells.
        restart_seconds: from the begin of a process to the end of its first step, the median; None when no line tells.
    """

    attempts: int = 0
    failures: int = 0
    running_seconds: float = 0.0
    restart_seconds: float | None = None

    @property
    def mtbf_seconds(self) -> float | None:
        """Running time for each failure, the likeliest mean of a constant rate; None when there was no failure.

        With few failures it is uncertain (by a factor of 2 to 3 with one), but the period goes with its root only, and
        the loss is flat around the best period: an MTBF that is wrong by a factor of 2 adds about 6 % to the loss.
        """
        return mean_between(self.running_seconds, self.failures)


def mean_between(running_seconds: float, failures: int) -> float | None:
    """Mean time between failures in seconds; None when there was none, or the time cannot be."""
    return running_seconds / failures if failures and running_seconds / failures >= _ABSURDLY_SHORT else None


def seconds_in(row: Row, name: str) -> float | None:
    """A length of time in a line; None where there is none, or one that cannot be."""
    value = row.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value <= _ABSURD else None


def count_in(row: Row, name: str) -> int:
    """A count in a line; 0 where there is none, or one that cannot be."""
    value = row.get(name)
    return value if type(value) is int and 0 < value <= _ABSURD_COUNT else 0


def measured_of(rows: Sequence[Row]) -> Measured:
    """What the last saves cost. `rows`: lines in the order of the file."""
    saved = [row for row in rows if row.get("outcome") == "saved"][-RECENT:]
    if not saved:
        return Measured()
    # Others than the present mode's say nothing of what comes.
    alike = [row for row in saved if row.get("mode") == saved[-1].get("mode")]
    free, is_sync = _step_seconds(alike), saved[-1].get("mode") != "async"
    return Measured(
        saves=len(alike),
        step_seconds=free,
        save_seconds=_save_seconds(alike, free, is_sync=is_sync),
        commit_delay_seconds=0.0 if is_sync else _median(_delays(alike)) or 0.0,
        period_steps=_period_steps(rows),
    )


def _period_steps(rows: Sequence[Row]) -> int | None:
    """What `auto` has set last, unless two saves since tell of another period; else what saves tell."""
    own = _newest_attempt(rows)
    changes = [number for number, row in enumerate(own) if _change(row)]
    told = changes[-1] if changes else 0
    # The save before a change is the begin of the first period with it.
    before = next((row for row in reversed(own[:told]) if row.get("outcome") == "saved"), None)
    later = [row for row in own[told:] if row.get("outcome") == "saved"][-RECENT:]
    between = _differences(later if before is None else [before, *later])
    changed = _change(own[told]) if changes else 0
    if changed and (len(between) < 2 or changed in between):
        return changed
    # One of them, and rather the longer: the last save of an attempt may come early.
    return statistics.median_high(between) if between else _first_difference(own)


def _newest_attempt(rows: Sequence[Row]) -> list[Row]:
    """Lines of the newest attempt that has saved, or has changed its period."""
    told = next((row for row in reversed(rows) if row.get("outcome") == "saved" or _change(row)), None)
    return [] if told is None else [row for row in rows if row.get("attempt") == told.get("attempt")]


def _change(row: Row) -> int:
    return count_in(row, "to") if row.get("outcome") == "period" else 0


def _first_difference(rows: Sequence[Row]) -> int | None:
    """An attempt that has saved once: the steps from its start on."""
    starts = [row["step"] for row in rows if row.get("outcome") == "started" and type(row.get("step")) is int]
    saved = next((row for row in rows if row.get("outcome") == "saved"), {})
    steps = count_in(saved, "step") - starts[-1] if starts else 0
    return steps if 0 < steps <= _ABSURD_COUNT else count_in(saved, "steps") or None


def _step_seconds(rows: Sequence[Row]) -> float | None:
    """One step beside which nothing is written; where there is none such, any."""
    for prefix in ("free", "all"):
        found = []
        for row in rows:
            took = seconds_in(row, "steps_seconds")
            made = count_in(row, "steps")
            if took is None or not made:
                continue
            busy = count_in(row, "busy_steps") if prefix == "free" else 0
            if made > busy:
                found.append((made - busy, max(0.0, took - (seconds_in(row, "busy_seconds") or 0.0 if busy else 0.0))))
        each = _mean_without_outliers(found)
        if each is not None:
            return each
    return _by_time_of_day(rows)


def _mean_without_outliers(found: Sequence[tuple[int, float]]) -> float | None:
    """Seconds of a step, of steps and what they took together; None where that cannot be."""
    if not found:
        return None
    most = _OUTLIER * statistics.median_low(seconds / steps for steps, seconds in found)
    kept = [(steps, seconds) for steps, seconds in found if seconds / steps <= most]
    each = sum(seconds for _, seconds in kept) / sum(steps for steps, _ in kept)
    return each if each >= _ABSURDLY_SHORT else None


def _by_time_of_day(rows: Sequence[Row]) -> float | None:
    """Of lines that an older version wrote: the time from save to save, less that of the save."""
    found = []
    for before, row in _pairs(rows):
        at, then = _time_in(row), _time_in(before)
        if at is None or then is None:
            continue
        lost = (seconds_in(row, "seconds") or 0.0) if row.get("mode") != "async" else 0.0
        each = (at - then - lost) / (row["step"] - before["step"])
        if _ABSURDLY_SHORT <= each <= _ABSURD:
            found.append(each)
    return _median(found)


def _time_in(row: Row) -> float | None:
    value = row.get("time")
    return float(value) if isinstance(value, int | float) and abs(value) <= _ABSURD_COUNT else None


def _save_seconds(rows: Sequence[Row], free: float | None, *, is_sync: bool) -> float | None:
    lost = [one for row in rows if (one := _lost(row, is_sync=is_sync)) is not None]
    if not lost:
        return None
    slowed = [
        max(0.0, (seconds_in(row, "busy_seconds") or 0.0) - busy * free)
        for row in rows
        if free and (busy := count_in(row, "busy_steps"))
    ]
    return statistics.median(lost) + (_median(slowed) or 0.0)


def _lost(row: Row, *, is_sync: bool) -> float | None:
    """What a save costs whenever it comes."""
    lost = seconds_in(row, "lost_seconds")
    if lost is None:
        return seconds_in(row, "seconds") if is_sync else None
    return max(0.0, lost - (seconds_in(row, "waited_seconds") or 0.0))


def _delays(rows: Sequence[Row]) -> list[float]:
    return [one for row in rows if (one := seconds_in(row, "seconds")) is not None]


def _differences(rows: Sequence[Row]) -> list[int]:
    return [row["step"] - before["step"] for before, row in _pairs(rows)]


def _pairs(rows: Sequence[Row]) -> Iterable[tuple[Row, Row]]:
    """Saves of one attempt that follow each other."""
    for before, row in itertools.pairwise(rows):
        steps = (before.get("step"), row.get("step"))
        are_counts = all(type(one) is int and 0 <= one <= _ABSURD_COUNT for one in steps)
        if before.get("attempt") == row.get("attempt") and are_counts and row["step"] > before["step"]:
            yield before, row


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def failures_of(rows: Iterable[Row], *, has_failed: bool = False) -> Failures:
    """Count starts that follow no end. `has_failed`: the last attempt is known to have ended otherwise than meant."""
    attempts = failures = 0
    running, starts, is_open = 0.0, [], False
    for row in rows:
        running += seconds_in(row, "steps_seconds") or 0.0
        running += (_lost(row, is_sync=row.get("mode") == "sync") or 0.0) + (seconds_in(row, "waited_seconds") or 0.0)
        match row.get("outcome"):
            case "started":
                attempts, failures = attempts + 1, failures + is_open
                is_open = True
                if (seconds := seconds_in(row, "seconds")) is not None:
                    starts.append(seconds)
                    running += seconds
            case outcome if outcome in _ENDS:
                is_open = False
    return Failures(attempts, failures + (is_open and has_failed), running, _median(starts))
