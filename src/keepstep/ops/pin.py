"""Pins: checkpoints that no retention deletes until they are unpinned."""

from dataclasses import dataclass
from pathlib import Path

from keepstep.errors import CheckpointNotFoundError, ConfigError
from keepstep.ops.found import open_checkpoint
from keepstep.plan.resume import Condition
from keepstep.storage.candidates import digest_of
from keepstep.storage.leases import pin, pin_notes, unpin

LONGEST_NOTE = 1000


@dataclass(frozen=True)
class Pinned:
    """A checkpoint, whether it is pinned now, and whether that or its note is new."""

    path: str
    step: int
    pinned: bool
    changed: bool
    note: str = ""


def pin_checkpoint(path: Path, note: str | None = None) -> Pinned:
    """Pin a checkpoint.

    Args:
        path: of the checkpoint.
        note: why, in the place of an earlier note. None: as it is.

    Raises:
        CheckpointNotFoundError: there is none, or it is not complete: a pin would promise what is not there.
        ConfigError: the note is too long.
    """
    if note is not None and len(note) > LONGEST_NOTE:
        raise ConfigError(f"the note has {len(note)} characters; {LONGEST_NOTE} are the most")
    found = open_checkpoint(path)
    if found.found.condition is not Condition.COMPLETE:
        raise CheckpointNotFoundError(f"{path} is {found.found.condition.value}: {found.found.problem}")
    step, folder = found.found.step, path.resolve().parent
    changed = pin(folder, step, note, digest_of(found))
    return Pinned(str(path), step, True, changed, pin_notes(folder).get(step, ""))


def unpin_checkpoint(path: Path) -> Pinned:
    """Take the pin of a checkpoint back, whatever has become of it. Raises CheckpointNotFoundError."""
    step = open_checkpoint(path).found.step
    return Pinned(str(path), step, False, unpin(path.resolve().parent, step))
