"""Applies the retention rule by hand."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.ops.verify import verify_one
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.plan.policies import NO_RULES, Rules
from keepstep.plan.retention import HELD, PROTECTED, Verdict, retain
from keepstep.plan.scores import Measured
from keepstep.plan.trainer_files import STATE, base_name
from keepstep.storage.candidates import candidates_of, digests_of
from keepstep.storage.deletion import delete_checkpoint
from keepstep.storage.json_file import read_json
from keepstep.storage.leases import leased_steps, pin_notes
from keepstep.storage.local import remove_tree
from keepstep.storage.naming import naming_in
from keepstep.storage.quarantine import size_of
from keepstep.storage.score_file import read_score_file
from keepstep.storage.survey import survey
from keepstep.storage.waiting_note import waiting_steps

_WAITS = "waits for its upload"
_GONE = "gone already: somebody else has deleted it meanwhile"


@dataclass(frozen=True)
class PrunePlan:
    """What a prune keeps and deletes. Incomplete, damaged and foreign folders are not its business.

    Attributes:
        damaged: checkpoints that looked complete and are not, by their digests: they do not count, and they stay.
        freed: bytes of what goes.
        put_away: bytes of what lies in quarantine or was set aside: nothing of keepstep's ever deletes that.
        prefix: what the checkpoints are called, without the step.
        kept: bytes of what stays.
        over_budget: bytes by which what must stay is more than the disk budget.
        budget: bytes that all of what stays may take; None: no bound.
        apart: bytes of what only readers and uploads hold; no budget gives up others for them.
    """

    folder: str
    verdicts: tuple[Verdict, ...]
    damaged: tuple[str, ...]
    freed: int
    put_away: int = 0
    prefix: str = layout.NATIVE.prefix
    kept: int = 0
    over_budget: int = 0
    budget: int | None = None
    apart: int = 0


def plan_prune(folder: Path, keep: int | None, rules: Rules = NO_RULES, scores: Path | None = None) -> PrunePlan:
    """Decide. Changes nothing.

    What is to stay is verified byte by byte before anything older is given up for it. Of a Trainer's checkpoints the
    best stays in any case, by what the newest one says, and so does the newest.

    Args:
        folder: the run's.
        keep: how many of the newest stay; None: all, as far as a disk budget lets them.
        rules: what stays beside those.
        scores: the folder that holds `scores.jsonl`; None: the run's own.

    Raises:
        CouldNotLookError: there is no such folder, or it cannot be read, or the scores are not there or not all of
            them can be read.
    """
    if not folder.exists():
        raise CouldNotLookError(f"{folder}: there is no such folder")
    naming = naming_in(folder)
    complete = {c.found.step: c for c in survey(folder, naming).complete}
    notes, waiting = pin_notes(folder, digests_of(complete.values())), waiting_steps(folder)
    passing = (leased_steps(folder) | waiting) - notes.keys()
    known = scores_to_keep_by(scores or folder) if rules.needs_scores else ()
    candidates = {one.step: one for one in candidates_of(complete.values(), rules, known)}
    damaged: list[str] = []
    good: set[int] = set()
    while True:
        best = _best(folder, naming, candidates)
        verdicts = retain(
            candidates.values(),
            rules.beside(keep),
            protected=() if best is None else (best, max(candidates)),
            held=passing | notes.keys(),
            passing=passing,
            now=time.time(),
            budget_bytes=rules.budget_bytes,
        )
        unverified = [v.step for v in verdicts if v.keep and v.step not in good]
        if not unverified or all(v.keep for v in verdicts):
            break
        result = verify_one(complete[unverified[-1]])
        if result.problems:
            damaged.append(f"{naming.checkpoint_name(result.step)}: {result.problems[0]}")
            del candidates[result.step]
        else:
            good.add(result.step)
    return _summed(
        PrunePlan(
            str(folder),
            _told(verdicts, best, notes, waiting),
            tuple(damaged),
            freed=0,
            put_away=size_of(folder),
            prefix=naming.prefix,
            budget=rules.budget_bytes,
        )
    )


def _summed(plan: PrunePlan) -> PrunePlan:
    kept = sum(v.size for v in plan.verdicts if v.keep)
    return replace(
        plan,
        freed=sum(v.size for v in plan.verdicts if not v.keep),
        kept=kept,
        over_budget=0 if plan.budget is None else max(0, kept - plan.budget),
        apart=sum(v.size for v in plan.verdicts if v.apart),
    )


def scores_to_keep_by(folder: Path) -> tuple[Measured, ...]:
    """What is known of checkpoints. What cannot be read of it may speak for any of them, so that is an error.

    Raises:
        CouldNotLookError: there are no scores, or some of them cannot be read.
    """
    found = read_score_file(folder)
    if not found.is_there:
        raise CouldNotLookError(f"{found.path}: there is no such file, so nobody knows which checkpoint is the best")
    if found.unreadable:
        raise CouldNotLookError(f"{found.told}, and may speak for the best checkpoint. Mend or delete them")
    return found.known


def _told(
    verdicts: Sequence[Verdict], best: int | None, notes: Mapping[int, str], waiting: Collection[int]
) -> tuple[Verdict, ...]:
    """The verdicts with what only the folder knows: a Trainer's best, the notes of pins, what waits."""
    told = {} if best is None else {verdicts[-1].step: "the newest", best: "the best, by what the newest says"}
    told |= {step: f"pinned: {note}" if note else "pinned" for step, note in notes.items() if step not in told}
    told |= {step: _WAITS for step in waiting if step not in told}
    return tuple(
        replace(v, reason=v.reason.replace(PROTECTED, told[v.step]).replace(HELD, told[v.step]))
        if v.step in told
        else v
        for v in verdicts
    )


def _best(folder: Path, naming: Naming, steps: Collection[int]) -> int | None:
    """The checkpoint that a Trainer calls its best, if it is among these."""
    if naming is not layout.TRAINER or not steps:
        return None
    state = read_json(folder / naming.checkpoint_name(max(steps)) / STATE)
    step = naming.step_of(base_name(state.get("best_model_checkpoint")))
    return step if step in steps else None


def apply_prune(plan: PrunePlan) -> PrunePlan:
    """Delete what the plan gives up, oldest first, and what deletions before did not end with.

    A job may be at work there meanwhile: what somebody holds by now stays, and what is gone is passed over.

    Returns:
        The plan as it came out.

    Raises:
        OSError: something cannot be deleted.
    """
    folder = Path(plan.folder)
    naming = Naming(plan.prefix)
    found = survey(folder, naming)
    for name in found.leftovers:
        if layout.is_doomed(name):
            remove_tree(folder / name)
    attempt = found.last_attempt
    verdicts = tuple(one if one.keep else _applied(one, folder, attempt, naming) for one in plan.verdicts)
    return _summed(replace(plan, verdicts=verdicts))


def _applied(verdict: Verdict, folder: Path, attempt: int, naming: Naming) -> Verdict:
    """What became of a checkpoint that was to be deleted."""
    if verdict.step in waiting_steps(folder):
        return replace(verdict, keep=True, reason=_WAITS)
    try:
        if delete_checkpoint(folder, verdict.step, attempt, naming):
            return verdict
    except FileNotFoundError:
        return replace(verdict, reason=_GONE, size=0)
    return replace(verdict, keep=True, reason=f"{HELD} by now")
