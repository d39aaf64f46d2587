"""What goes to a mirror and when, what stays there, and where a run goes on that has checkpoints in several places."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Copy:
    """A complete checkpoint, wherever it lies. Attempts of a run grow: one of a later attempt is of the later work."""

    step: int
    attempt: int


@dataclass(frozen=True)
class CopyVerdict:
    """What becomes of one checkpoint on a mirror, and why."""

    copy: Copy
    keep: bool
    reason: str


def present_line(copies: Iterable[Copy]) -> tuple[Copy, ...]:
    """Those that the present line of a run goes back to, newest first.

    An attempt saves only beyond the step that it began with. So where a later attempt has saved an earlier step, the
    run went on from before that, and what earlier attempts saved beyond it is of a line that was left.
    """
    found = set(copies)
    kept = [c for c in found if not any(o.attempt > c.attempt and o.step <= c.step for o in found)]
    return tuple(sorted(kept, reverse=True))


def choose_fetches(
    local: Collection[Copy], offered: Collection[Copy], requested: int | None = None
) -> tuple[Copy, ...]:
    """What a resume takes from mirrors, the best first: each that is newer than all that is here.

    Args:
        local: complete checkpoints in the run's folder.
        offered: those on mirrors.
        requested: the step that was asked for; None for the newest.

    Returns:
        Empty where the folder has what is wanted, or nobody has it.
    """
    if requested is not None:
        if any(copy.step == requested for copy in local):
            return ()
        return tuple(sorted((copy for copy in set(offered) if copy.step == requested), reverse=True))
    line = present_line([*local, *offered])
    newest_here = max((copy.step for copy in line if copy in set(local)), default=-1)
    return tuple(copy for copy in line if copy.step > newest_here and copy not in set(local))


def left_behind(local: Collection[Copy], chosen: Copy) -> bool:
    """Whether the folder holds checkpoints that are of a line that was left where `chosen` is of the present one."""
    return any(copy.step >= chosen.step and copy.attempt < chosen.attempt for copy in local)


def due_uploads(
    local: Collection[Copy],
    mirrored: Collection[Copy],
    period_steps: int | None = None,
    forced: Collection[int] = (),
    num_to_keep: int | None = None,
) -> tuple[Copy, ...]:
    """What is to be uploaded, in that order: the newest first, since it is what a lost machine would cost.

    Args:
        local: complete checkpoints in the run's folder.
        mirrored: those on the mirror.
        period_steps: at least so many steps lie between two that are uploaded; None: each is.
        forced: steps that are uploaded whatever the period (the last one, that of a stop).
        num_to_keep: how many remain there: what would not remain is not uploaded.
    """
    line = present_line([*local, *mirrored])
    there = set(mirrored)
    due: list[Copy] = []
    last: int | None = None
    for copy in sorted(copy for copy in line if copy in there or copy in set(local)):
        if copy in there:
            last = copy.step
        elif period_steps is None or last is None or copy.step - last >= period_steps or copy.step in forced:
            due.append(copy)
            last = copy.step
    remaining = sorted([*due, *(copy for copy in line if copy in there)], reverse=True)[:num_to_keep]
    return tuple(copy for copy in reversed(due) if copy in remaining)


@dataclass(frozen=True)
class PushPlan:
    """What is uploaded by hand.

    Attributes:
        due: in that order, the newest first.
        present: on the mirror already.
        refused: what the mirror has in place of local ones, of a later attempt.
    """

    due: tuple[Copy, ...]
    present: tuple[Copy, ...]
    refused: tuple[Copy, ...]


def plan_pushes(local: Collection[Copy], mirrored: Collection[Copy], same: Collection[int]) -> PushPlan:
    """Decide what is uploaded by hand. What a later attempt has saved there under a step is of another line of the run,
    and is not replaced; what an earlier one has saved is.

    Args:
        local: what is to be on the mirror.
        mirrored: complete checkpoints there.
        same: steps of which both sides have the very same checkpoint.
    """
    there = {copy.step: copy for copy in sorted(mirrored)}
    ordered = sorted(set(local), reverse=True)
    other = [copy for copy in ordered if copy.step not in same]
    refused = [there[c.step] for c in other if c.step in there and there[c.step].attempt > c.attempt]
    steps = {copy.step for copy in refused}
    return PushPlan(
        tuple(copy for copy in other if copy.step not in steps),
        tuple(copy for copy in ordered if copy.step in same),
        tuple(refused),
    )


def waiting(
    due: Sequence[Copy], mirrored: Collection[Copy], num_to_keep: int | None, most: int, *, require: bool
) -> tuple[frozenset[int], tuple[int, ...]]:
    """Which local checkpoints retention must leave alone for a mirror.

    Args:
        due: what is to be uploaded, the newest first.
        mirrored: what is on the mirror.
        num_to_keep: how many remain here.
        most: so many of those wait that retention would delete.
        require: all of them wait, and the newest that are mirrored stay beside them.

    Returns:
        Steps that stay, and steps that are given up: they are uploaded only if they are still there when it is their
        turn.
    """
    steps = [copy.step for copy in due]
    if num_to_keep is None:
        return frozenset(steps), ()
    if require:
        newest = sorted({copy.step for copy in mirrored}, reverse=True)[:num_to_keep]
        return frozenset([*steps, *newest]), ()
    # The newest are kept in any case; only those beyond them take more room.
    kept = num_to_keep + most
    return frozenset(steps[:kept]), tuple(steps[kept:])


def plan_mirror_retention(
    stored: Collection[Copy], num_to_keep: int | None, held: Collection[int] = ()
) -> tuple[CopyVerdict, ...]:
    """What stays on a mirror: the newest of the present line. Called when the newest is complete there.

    Args:
        stored: complete checkpoints on the mirror.
        num_to_keep: how many remain; None keeps all.
        held: steps that are pinned: they stay and do not count.

    Returns:
        A verdict for each, oldest first.
    """
    line = present_line(stored)
    newest = [copy for copy in line if copy.step not in held or copy == line[0]][:num_to_keep]
    verdicts = []
    for copy in sorted(set(stored)):
        if num_to_keep is None:
            verdicts.append(CopyVerdict(copy, True, "all are kept"))
        elif copy in newest:
            verdicts.append(CopyVerdict(copy, True, f"among the {num_to_keep} newest"))
        elif copy.step in held:
            verdicts.append(CopyVerdict(copy, True, "pinned"))
        elif copy not in line:
            verdicts.append(CopyVerdict(copy, False, "of a line of the run that was left"))
        else:
            verdicts.append(CopyVerdict(copy, False, f"older than the {num_to_keep} to keep"))
    return tuple(verdicts)


def back_off_seconds(failures: int, longest: float = 300.0) -> float:
    """How long after the n-th failure in a row (from 1) an upload is tried again: 2, 4, 8 ... seconds."""
    return min(longest, 2.0 ** min(failures, 20))
