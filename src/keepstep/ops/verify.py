"""Verifies checkpoints: every byte against its digest."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from keepstep.errors import CheckpointNotFoundError
from keepstep.ops.found import open_checkpoint, survey_run
from keepstep.plan import layout
from keepstep.plan.resume import Condition
from keepstep.storage.survey import SurveyedCheckpoint
from keepstep.storage.verify import verify_files


@dataclass(frozen=True)
class Verified:
    """The result for one checkpoint: its condition, and what is wrong with it, file by file."""

    step: int
    path: str
    condition: str
    size: int
    problems: tuple[str, ...]


def targets(path: Path) -> list[SurveyedCheckpoint]:
    """The checkpoints that a path means: itself, or all in the folder, oldest first.

    Raises:
        CheckpointNotFoundError: there is none.
        CouldNotLookError: the folder cannot be read.
    """
    if layout.any_step_of(path.resolve().name) is not None:
        return [open_checkpoint(path)]
    found = survey_run(path).checkpoints
    if not found:
        raise CheckpointNotFoundError(f"{path}: no checkpoint there")
    return list(found)


def verify(path: Path) -> Iterator[Verified]:
    """Verify one checkpoint or all of a folder, one result after the other."""
    for found in targets(path):
        yield verify_one(found)


def verify_one(found: SurveyedCheckpoint) -> Verified:
    """Read all files of one checkpoint and compare them with its digests."""
    manifest = found.manifest
    if manifest is None or found.found.condition is not Condition.COMPLETE:
        return Verified(found.found.step, str(found.path), found.found.condition.value, 0, (found.found.problem,))
    damage = verify_files(found.path, manifest, sorted(manifest.files))
    condition = Condition.DAMAGED if damage else Condition.COMPLETE
    return Verified(
        found.found.step, str(found.path), condition.value, manifest.size, tuple(str(one) for one in damage)
    )
