"""From what a listing found to what a start does."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from keepstep.plan.layout import NATIVE, QUARANTINE, Naming


class Condition(Enum):
    """What a `save-<step>` folder is, judged by its manifest and file sizes."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    DAMAGED = "damaged"
    TOO_NEW = "of a newer version"


@dataclass(frozen=True)
class Found:
    """A `save-<step>` folder. `problem` says what is wrong with one that is not complete.

    `may_arrive`: all that is wrong is that files are missing. A copy that is under way looks like that.
    `may_grow`: a file is shorter than it should be. On a mounted drive that tells sizes late it looks like that.
    """

    step: int
    condition: Condition
    problem: str = ""
    may_arrive: bool = False
    may_grow: bool = False


class Start(Enum):
    """How a job starts."""

    FRESH = "fresh"
    RESUME = "resume"
    NOT_FOUND = "not found"
    NOTHING_GOOD = "nothing good"
    TOO_NEW = "too new"


@dataclass(frozen=True)
class ResumeDecision:
    """What a start does.

    Attributes:
        start: how the job starts.
        candidates: steps to try, best first; empty unless start is RESUME.
        ignored: folders that look like checkpoints and are passed over; newest first.
        reason: one sentence for the log or the error.
        odd: names of checkpoints that are links or files.
    """

    start: Start
    candidates: tuple[int, ...]
    ignored: tuple[Found, ...]
    reason: str
    odd: tuple[str, ...] = ()

    @property
    def damaged(self) -> tuple[Found, ...]:
        """Those of the ignored that were committed once and are not as they were written; newest first."""
        return tuple(f for f in self.ignored if f.condition is Condition.DAMAGED and not f.may_arrive)


def decide(
    found: Sequence[Found],
    requested: int | None = None,
    quarantined: Sequence[int] = (),
    naming: Naming = NATIVE,
) -> ResumeDecision:
    """Choose what to resume from: the requested step and no other, else the newest complete one.

    A `save-<step>` without a manifest never was committed: it does not stand against a fresh start. One whose manifest
    exists but which is damaged does, also from quarantine: starting from scratch beside it would throw a run away
    silently.

    Args:
        found: the `save-<step>` folders.
        requested: the step to resume from, None for the newest.
        quarantined: steps of damaged checkpoints that were moved away.
        naming: how checkpoints are called there, for the reason.
    """
    called = naming.checkpoint_name
    newest_first = sorted(found, key=lambda f: f.step, reverse=True)
    complete = tuple(f.step for f in newest_first if f.condition is Condition.COMPLETE)
    bad = tuple(f for f in newest_first if f.condition is not Condition.COMPLETE)
    if requested is not None:
        if requested in complete:
            return ResumeDecision(Start.RESUME, (requested,), (), f"step {requested} was asked for")
        there = ", ".join(str(step) for step in complete) or "none"
        wrong = next(
            (f"; {called(f.step)} is {f.condition.value}: {f.problem}" for f in bad if f.step == requested), ""
        )
        if not wrong and requested in quarantined:
            wrong = f"; {called(requested)} was damaged and lies in {QUARANTINE}"
        return ResumeDecision(
            Start.NOT_FOUND, (), bad, f"step {requested} was asked for; steps that can be resumed: {there}{wrong}"
        )
    too_new = [f for f in bad if f.condition is Condition.TOO_NEW and f.step > (complete or (-1,))[0]]
    if too_new:
        # Going on from an older one would throw away, in silence, what a newer version has done.
        return ResumeDecision(Start.TOO_NEW, (), bad, f"{called(too_new[0].step)}: {too_new[0].problem}")
    if complete:
        ignored = tuple(f for f in bad if f.step > complete[0])
        return ResumeDecision(Start.RESUME, complete, ignored, f"step {complete[0]} is the newest complete checkpoint")
    damaged = [f for f in bad if f.condition is Condition.DAMAGED]
    if damaged:
        return ResumeDecision(
            Start.NOTHING_GOOD, (), bad, "; ".join(f"{called(f.step)}: {f.problem}" for f in damaged[:3])
        )
    if quarantined:
        names = ", ".join(called(step) for step in sorted(quarantined, reverse=True)[:3])
        return ResumeDecision(
            Start.NOTHING_GOOD, (), bad, f"{names} was damaged and lies in {QUARANTINE}; --fresh starts over"
        )
    return ResumeDecision(Start.FRESH, (), bad, "there is no checkpoint")
