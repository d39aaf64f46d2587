"""What happened in a run, in the order of attempt and step: clocks may go back."""

from collections.abc import Sequence
from dataclasses import dataclass

from keepstep.plan.report.attempts import Attempt
from keepstep.plan.report.facts import (
    ENDS,
    FAILED,
    MIRRORED,
    NOT_MIRRORED,
    SAVED,
    SKIPPED,
    STARTED,
    Facts,
    Row,
    finite,
    text,
    whole,
)
from keepstep.plan.report.words import seconds_text

# Kinds of events beside the outcomes of rows.
SAVE_FAILED, SAVE_SKIPPED = "save failed", "save skipped"
RESUMED, DIED, FORKED, MOVED, ENDED, CLOCK = "resumed", "died", "forked", "moved", "ended", "clock went back"
# Smaller steps back are those of a clock that is kept right.
_CLOCK_SECONDS = 1.0


@dataclass(frozen=True)
class Event:
    """Something that happened.

    Attributes:
        attempt, step: when; None where nothing tells.
        kind: one of the names here, or the outcome that a row states.
        time: in seconds since the epoch, by the clock of whoever wrote it down.
        detail: in words.
    """

    attempt: int | None
    step: int | None
    kind: str
    time: float | None = None
    detail: str = ""


def events_of(facts: Facts, attempts: Sequence[Attempt]) -> tuple[Event, ...]:
    """All that happened, by attempt and step."""
    events = [_of_row(row) for row in facts.saves] + _clock(facts.saves)
    logged = {(one.attempt, one.step) for one in events if one.kind == SAVED}
    # The log is told of saves, not relied on: a checkpoint that it lacks was saved all the same.
    kept = [one for one in facts.checkpoints if one.attempt is not None and (one.attempt, one.step) not in logged]
    events += [Event(one.attempt, one.step, SAVED, one.created_at) for one in kept]
    has_row = {whole(row.get("attempt")) for row in facts.saves if row.get("outcome") == STARTED}
    for at, one in enumerate(attempts):
        if at and one.number not in has_row:
            again = attempts[at - 1].redone
            detail = f"{again:,} steps are made again" if again else ""
            events.append(Event(one.number, one.start, RESUMED, one.began, detail))
        if one.died:
            events.append(Event(one.number, one.end, DIED, one.ended, "it left no word of its end"))
    for moved in facts.moved:
        detail = f"checkpoint in {moved.place}" + (f": {moved.why}" if moved.why else "")
        events.append(Event(moved.attempt, moved.step, MOVED, None, detail))
    for fork in facts.forks:
        detail = f"{fork.name} was begun from here"
        events.append(Event(_attempt_with(fork.step, attempts), fork.step, FORKED, None, detail))
    has_end = {whole(row.get("attempt")) for row in facts.saves if row.get("outcome") in ENDS}
    if attempts and attempts[-1].number not in has_end and (outcome := text(facts.exit.get("outcome"))):
        detail = outcome + (f": {problem}" if (problem := text(facts.exit.get("error"))) else "")
        events.append(Event(attempts[-1].number, attempts[-1].end, ENDED, finite(facts.exit.get("time")), detail))
    return tuple(sorted(events, key=_place))


def _place(event: Event) -> tuple[int, int, int]:
    """Within a step, an attempt begins first and ends last."""
    return event.attempt or 0, event.step or 0, {RESUMED: 0, STARTED: 0, DIED: 2, ENDED: 2}.get(event.kind, 1)


def _attempt_with(step: int, attempts: Sequence[Attempt]) -> int | None:
    """The last attempt that came by a step: a note of a fork names none."""
    fitting = [one.number for one in attempts if (one.start or 0) <= step <= (one.end or 0)]
    return fitting[-1] if fitting else None


def _of_row(row: Row) -> Event:
    kind = text(row.get("outcome")) or "unknown"
    attempt, step = whole(row.get("attempt")), whole(row.get("step"))
    if kind == STARTED:
        kind = RESUMED if step else STARTED
    kind = {FAILED: SAVE_FAILED, SKIPPED: SAVE_SKIPPED}.get(kind, kind)
    if kind in ENDS:
        return Event(attempt, step, ENDED, finite(row.get("time")), kind)
    detail = text(row.get("problem")) or text(row.get("reason")) or text(row.get("why"))
    if (address := text(row.get("address"))) and kind in (MIRRORED, NOT_MIRRORED):
        detail = f"{address}: {detail}" if detail else address
    return Event(attempt, step, kind, finite(row.get("time")), detail)


def _clock(rows: Sequence[Row]) -> list[Event]:
    """Where a row has an earlier time than the row that was written before it."""
    found, before = [], None
    for row in rows:
        time = finite(row.get("time"))
        if time is None:
            continue
        if before is not None and time < before - _CLOCK_SECONDS:
            detail = f"by {seconds_text(before - time)}: times before and after do not compare"
            found.append(Event(whole(row.get("attempt")), whole(row.get("step")), CLOCK, time, detail))
        before = time
    return found
