"""Pins: checkpoints that no retention deletes until they are unpinned."""

from dataclasses import dataclass
from pathlib import Path

from keepstep.errors import CheckpointNotFoundError
from keepstep.ops.found import open_checkpoint
from keepstep.plan.resume import Condition
from keepstep.storage.leases import pin, unpin


@dataclass(frozen=True)
class Pinned:
    """A checkpoint, whether it is pinned now, and whether that is new."""

    path: str
    step: int
    pinned: bool
    changed: bool


def pin_checkpoint(path: Path) -> Pinned:
    """Pin a checkpoint.

    Raises:
        CheckpointNotFoundError: there is none, or it is not complete: a pin would promise what is not there.
    """
    found = open_checkpoint(path)
    if found.found.condition is not Condition.COMPLETE:
        raise CheckpointNotFoundError(f"{path} is {found.found.condition.value}: {found.found.problem}")
    step = found.found.step
    return Pinned(str(path), step, True, pin(path.resolve().parent, step))


def unpin_checkpoint(path: Path) -> Pinned:
    """Take the pin of a checkpoint back, whatever has become of it. Raises CheckpointNotFoundError."""
    step = open_checkpoint(path).found.step
    return Pinned(str(path), step, False, unpin(path.resolve().parent, step))
