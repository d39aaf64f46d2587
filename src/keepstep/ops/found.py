"""What the commands look at: one checkpoint, or all of a run's folder, whether keepstep or a Trainer named them."""

import os
from dataclasses import replace
from pathlib import Path

from keepstep.errors import CheckpointNotFoundError
from keepstep.plan import layout
from keepstep.plan.resume import Condition
from keepstep.storage.naming import naming_in
from keepstep.storage.survey import Survey, SurveyedCheckpoint, inspect, survey


def survey_run(folder: Path) -> Survey:
    """Look into a run's folder. Of a checkpoint that a Trainer wrote alone it says what makes it keepstep's.

    Raises as `keepstep.storage.survey.survey`.
    """
    found = survey(folder, naming_in(folder))
    return replace(found, checkpoints=tuple(map(_with_remedy, found.checkpoints)))


def open_checkpoint(path: Path) -> SurveyedCheckpoint:
    """Look at one checkpoint folder. Raises CheckpointNotFoundError when the path is none."""
    step = layout.any_step_of(path.resolve().name)
    if step is None or not path.is_dir():
        raise CheckpointNotFoundError(f"{path}: not a checkpoint; give a save-<step> or checkpoint-<step> folder")
    return _with_remedy(inspect(path, step))


def is_trainers(path: Path) -> bool:
    """Whether a path has the name of a checkpoint of a Trainer."""
    return layout.naming_of(path.resolve().name) is layout.TRAINER


def _with_remedy(checkpoint: SurveyedCheckpoint) -> SurveyedCheckpoint:
    found, path = checkpoint.found, checkpoint.path
    if found.condition is not Condition.INCOMPLETE or not is_trainers(path) or os.path.lexists(path / layout.MANIFEST):
        return checkpoint
    problem = f"{found.problem} (a Trainer wrote it alone): keepstep adopt {path.parent}"
    return replace(checkpoint, found=replace(found, problem=problem))
