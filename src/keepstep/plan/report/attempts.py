"""The attempts of a run, put together from all that has their numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from keepstep.plan.lock import Claim
from keepstep.plan.report.facts import (
    ENDS,
    FAILED,
    MIRRORED,
    NOT_MIRRORED,
    SAVED,
    STARTED,
    Facts,
    Row,
    finite,
    text,
    whole,
)
from keepstep.plan.report.words import time_text


@dataclass(frozen=True)
class Attempt:
    """One start of the run.

    Attributes:
        number: counts starts.
        start: the completed steps that it went on from; None where nothing tells.
        end: the highest step that is known of it.
        saves, failures: how many saves were committed, and failed.
        began, ended: times of its first and last row; None where nothing tells, or the clock went back between them.
        world_size: its ranks.
        outcome: how it ended.
        redone: steps that the next attempt made again.
        died: whether it ended without the word that attempts leave that note their start.
    """

    number: int
    start: int | None
    end: int | None
    saves: int
    failures: int
    began: float | None
    ended: float | None
    world_size: int | None
    outcome: str
    redone: int = 0
    died: bool = False


def attempts_of(facts: Facts, logged_step: int | None) -> tuple[Attempt, ...]:
    """Put the attempts together from all that has their numbers.

    Args:
        facts: of the run.
        logged_step: the newest step in the tracker's rows, which is of the last attempt.
    """
    rows: dict[int, list[Row]] = {}
    for row in facts.saves:
        if (number := whole(row.get("attempt"))) is not None:
            rows.setdefault(number, []).append(row)
    steps: dict[int, set[int]] = {number: _steps(group) for number, group in rows.items()}
    for one in facts.checkpoints:
        if one.attempt is not None:
            steps.setdefault(one.attempt, set()).add(one.step)
    found = [_attempt(facts, number, rows.get(number, []), steps[number]) for number in sorted(steps)]
    if found and logged_step is not None and logged_step > (found[-1].end or 0):
        found[-1] = replace(found[-1], end=logged_step)
    return tuple(_judged(found, facts))


def _steps(rows: Sequence[Row]) -> set[int]:
    # An upload may be of a checkpoint that an attempt before has saved.
    return {
        step
        for row in rows
        if row.get("outcome") not in (MIRRORED, NOT_MIRRORED) and (step := whole(row.get("step"))) is not None
    }


def _attempt(facts: Facts, number: int, rows: list[Row], steps: set[int]) -> Attempt:
    times = [time for row in rows if (time := finite(row.get("time"))) is not None]
    kept = [one for one in facts.checkpoints if one.attempt == number]
    began, ended = (times[0], times[-1]) if times else (None, None)
    if began is not None and ended is not None and ended < began:
        began = ended = None
    saves = len({whole(row.get("step")) for row in rows if row.get("outcome") == SAVED} | {one.step for one in kept})
    worlds = [_world(row) for row in rows] + [one.world_size for one in kept]
    return Attempt(
        number=number,
        start=_start(facts, number, rows, steps),
        end=max(steps, default=None),
        saves=saves,
        failures=sum(row.get("outcome") == FAILED for row in rows),
        began=began,
        ended=ended,
        world_size=next((world for world in worlds if world), None),
        outcome=next((text(row.get("outcome")) for row in reversed(rows) if row.get("outcome") in ENDS), ""),
    )


def _world(row: Row) -> int | None:
    ranks = row.get("ranks")
    return len(ranks) if isinstance(ranks, list) and ranks else whole(row.get("world_size"))


def _start(facts: Facts, number: int, rows: list[Row], steps: set[int]) -> int | None:
    """What a row says; else the parent of its first checkpoint; else the highest step before it that was known."""
    for row in rows:
        if row.get("outcome") == STARTED and (step := whole(row.get("step"))) is not None:
            return step
    if not steps:
        return None
    first = min(steps)
    for one in facts.checkpoints:
        if one.attempt == number and one.step == first and one.parent_step is not None:
            return one.parent_step
    logged = [(row.get("attempt"), row.get("step")) for row in facts.saves if row.get("outcome") == SAVED]
    known = [(whole(attempt), whole(step)) for attempt, step in logged]
    known += [(one.attempt, one.step) for one in facts.checkpoints]
    before = [s for a, s in known if a is not None and a < number and s is not None and s < first]
    return max(before, default=0)


def _judged(found: list[Attempt], facts: Facts) -> list[Attempt]:
    judged = []
    noted = {whole(row.get("attempt")) for row in facts.saves if row.get("outcome") == STARTED}
    for at, one in enumerate(found):
        if at + 1 == len(found):
            judged.append(replace(one, outcome=state_of(facts, one)[0]))
            continue
        start = found[at + 1].start
        redone = max(0, one.end - start) if one.end is not None and start is not None else 0
        died = one.number in noted and not one.outcome
        how = "died; " if died else f"{one.outcome}; " if one.outcome else ""
        went_on = f"{how}attempt {found[at + 1].number} went on" + ("" if start is None else f" from step {start:,}")
        judged.append(replace(one, outcome=went_on, redone=redone, died=died))
    return judged


def state_of(facts: Facts, last: Attempt | None) -> tuple[str, str]:
    """How the run stands, in a word and a sentence."""
    noted, problem = text(facts.exit.get("outcome")), text(facts.exit.get("error"))
    outcome = noted or (last.outcome if last is not None and last.outcome in ENDS else "")
    if facts.claim is Claim.HELD:
        return "running", facts.holder
    if outcome:
        at = finite(facts.exit.get("time"))
        return outcome, problem or ("" if at is None else f"{time_text(at)} UTC")
    if facts.claim is Claim.UNKNOWN:
        return "running or lost", f"{facts.holder} has the folder; whether it lives cannot be told from here"
    if last is None and facts.checkpoints:
        return "unknown", "nothing in the folder says whether it runs, or how it ended"
    if last is None:
        return "not begun", "there is no checkpoint, and no row of a save"
    if facts.total_steps and (last.end or 0) >= facts.total_steps:
        return "complete", "the last step is saved"
    return "not running", "nothing says how it ended: it was killed, or its trainer leaves no note"
