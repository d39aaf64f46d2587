"""Applies the retention rule by hand."""

from dataclasses import dataclass
from pathlib import Path

from keepstep.plan import layout
from keepstep.plan.retention import Verdict, plan_retention
from keepstep.storage.deletion import delete_checkpoint
from keepstep.storage.local import remove_tree
from keepstep.storage.survey import survey


@dataclass(frozen=True)
class PrunePlan:
    """What a prune keeps and deletes. Incomplete, damaged and foreign folders are not its business."""

    folder: str
    verdicts: tuple[Verdict, ...]
    freed: int


def plan_prune(folder: Path, keep: int) -> PrunePlan:
    """Decide. Changes nothing. Raises CouldNotLookError when the folder cannot be read."""
    complete = {c.found.step: c for c in survey(folder).complete}
    verdicts = plan_retention(list(complete), keep)
    sizes = {step: c.manifest.size for step, c in complete.items() if c.manifest is not None}
    return PrunePlan(str(folder), verdicts, sum(sizes.get(v.step, 0) for v in verdicts if not v.keep))


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
