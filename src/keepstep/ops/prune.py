"""Applies the retention rule by hand."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.ops.verify import verify_one
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.plan.retention import Verdict, plan_retention
from keepstep.plan.trainer_files import STATE, base_name
from keepstep.storage.deletion import delete_checkpoint
from keepstep.storage.json_file import read_json
from keepstep.storage.leases import held_steps
from keepstep.storage.local import remove_tree
from keepstep.storage.naming import naming_in
from keepstep.storage.quarantine import size_of
from keepstep.storage.survey import survey


@dataclass(frozen=True)
class PrunePlan:
    """What a prune keeps and deletes. Incomplete, damaged and foreign folders are not its business.

    Attributes:
        damaged: checkpoints that looked complete and are not, by their digests: they do not count, and they stay.
        freed: bytes of what goes.
        put_away: bytes of what lies in quarantine or was set aside: nothing of keepstep's ever deletes that.
        prefix: what the checkpoints are called, without the step.
    """

    folder: str
    verdicts: tuple[Verdict, ...]
    damaged: tuple[str, ...]
    freed: int
    put_away: int = 0
    prefix: str = layout.NATIVE.prefix


def plan_prune(folder: Path, keep: int) -> PrunePlan:
    """Decide. Changes nothing.

    What is to stay is verified byte by byte before anything older is given up for it. Of a Trainer's checkpoints the
    best stays in any case, by what the newest one says, and so does the newest.

    Raises:
        CouldNotLookError: there is no such folder, or it cannot be read.
    """
    if not folder.exists():
        raise CouldNotLookError(f"{folder}: there is no such folder")
    held, naming = held_steps(folder), naming_in(folder)
    complete = {c.found.step: c for c in survey(folder, naming).complete}
    damaged: list[str] = []
    good: set[int] = set()
    while True:
        best = _best(folder, naming, complete)
        protected = () if best is None else (best, max(complete))
        verdicts = plan_retention(list(complete), keep, protected, held)
        unverified = [v.step for v in verdicts if v.keep and v.step not in good]
        if not unverified or all(v.keep for v in verdicts):
            break
        result = verify_one(complete[unverified[-1]])
        if result.problems:
            damaged.append(f"{naming.checkpoint_name(result.step)}: {result.problems[0]}")
            del complete[result.step]
        else:
            good.add(result.step)
    sizes = {step: c.manifest.size for step, c in complete.items() if c.manifest is not None}
    freed = sum(sizes.get(v.step, 0) for v in verdicts if not v.keep)
    told = {} if best is None else {max(complete): "the newest", best: "the best, by what the newest says"}
    verdicts = tuple(replace(v, reason=told[v.step]) if v.step in told else v for v in verdicts)
    return PrunePlan(str(folder), verdicts, tuple(damaged), freed, size_of(folder), naming.prefix)


def _best(folder: Path, naming: Naming, steps: Collection[int]) -> int | None:
    """The checkpoint that a Trainer calls its best, if it is among these."""
    if naming is not layout.TRAINER or not steps:
        return None
    state = read_json(folder / naming.checkpoint_name(max(steps)) / STATE)
    step = naming.step_of(base_name(state.get("best_model_checkpoint")))
    return step if step in steps else None


def apply_prune(plan: PrunePlan) -> None:
    """Delete what the plan gives up, oldest first, and what deletions before did not end with.

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
    for verdict in plan.verdicts:
        if not verdict.keep:
            delete_checkpoint(folder, verdict.step, attempt, naming)
