"""Applies the retention rule by hand."""

from dataclasses import dataclass
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.ops.verify import verify_one
from keepstep.plan import layout
from keepstep.plan.retention import Verdict, plan_retention
from keepstep.storage.deletion import delete_checkpoint
from keepstep.storage.leases import held_steps
from keepstep.storage.local import remove_tree
from keepstep.storage.quarantine import size_of
from keepstep.storage.survey import survey


@dataclass(frozen=True)
class PrunePlan:
    """What a prune keeps and deletes. Incomplete, damaged and foreign folders are not its business.

    Attributes:
        damaged: checkpoints that looked complete and are not, by their digests: they do not count, and they stay.
        freed: bytes of what goes.
        put_away: bytes of what lies in quarantine or was set aside: nothing of keepstep's ever deletes that.
    """

    folder: str
    verdicts: tuple[Verdict, ...]
    damaged: tuple[str, ...]
    freed: int
    put_away: int = 0


def plan_prune(folder: Path, keep: int) -> PrunePlan:
    """Decide. Changes nothing.

    What is to stay is verified byte by byte before anything older is given up for it.

    Raises:
        CouldNotLookError: there is no such folder, or it cannot be read.
    """
    if not folder.exists():
        raise CouldNotLookError(f"{folder}: there is no such folder")
    held = held_steps(folder)
    complete = {c.found.step: c for c in survey(folder).complete}
    damaged: list[str] = []
    good: set[int] = set()
    while True:
        verdicts = plan_retention(list(complete), keep, held=held)
        unverified = [v.step for v in verdicts if v.keep and v.step not in good]
        if not unverified or all(v.keep for v in verdicts):
            break
        result = verify_one(complete[unverified[-1]])
        if result.problems:
            damaged.append(f"save-{result.step}: {result.problems[0]}")
            del complete[result.step]
        else:
            good.add(result.step)
    sizes = {step: c.manifest.size for step, c in complete.items() if c.manifest is not None}
    freed = sum(sizes.get(v.step, 0) for v in verdicts if not v.keep)
    return PrunePlan(str(folder), verdicts, tuple(damaged), freed, size_of(folder))


def apply_prune(plan: PrunePlan) -> None:
    """Delete what the plan gives up, oldest first, and what deletions before did not end with.

    Raises:
        OSError: something cannot be deleted.
    """
    folder = Path(plan.folder)
    found = survey(folder)
    for name in found.leftovers:
        if layout.is_doomed(name):
            remove_tree(folder / name)
    attempt = found.last_attempt
    for verdict in plan.verdicts:
        if not verdict.keep:
            delete_checkpoint(folder, verdict.step, attempt)
