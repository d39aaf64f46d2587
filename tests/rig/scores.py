"""Scores of checkpoints, as a watcher writes them."""

from pathlib import Path

from keepstep.plan.scores import Score
from keepstep.storage.candidates import digest_of
from keepstep.storage.scoring.scores import add_score
from keepstep.storage.survey import inspect


def give_score(checkpoint: Path, folder: Path | None = None, set: str = "task", **metrics: float) -> None:
    """Add a row for a checkpoint, to its run's folder or another one."""
    step = int(checkpoint.name.rpartition("-")[2])
    digest = digest_of(inspect(checkpoint, step))
    assert add_score(folder or checkpoint.parent, Score(step, digest, set, "scored", checkpoint.name, metrics))
