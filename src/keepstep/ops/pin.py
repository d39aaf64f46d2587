"""Pins: checkpoints that no retention deletes until they are unpinned."""

import os
from dataclasses import dataclass
from pathlib import Path

from keepstep.errors import CheckpointNotFoundError, ConfigError
from keepstep.ops.found import open_checkpoint
from keepstep.plan.resume import Condition
from keepstep.storage import named_records
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


def pin_checkpoint(path: Path, note: str | None = None, *, only_if_none: bool = False) -> Pinned:
    """Pin a checkpoint. Of Lightning's all are pinned that have its step.

    Args:
        path: of the checkpoint.
        note: why, in the place of an earlier note. None: as it is.
        only_if_none: an earlier note of this checkpoint stays.

    Raises:
        CheckpointNotFoundError: there is none, or it is not complete: a pin would promise what is not there.
        ConfigError: the note is too long.
        OSError: the pin cannot be written.
    """
    if note is not None and len(note) > LONGEST_NOTE:
        raise ConfigError(f"the note has {len(note)} characters; {LONGEST_NOTE} are the most")
    folder = path.resolve().parent
    step, digest = _named_step(path), ""
    if step is None:
        found = open_checkpoint(path)
        if found.found.condition is not Condition.COMPLETE:
            raise CheckpointNotFoundError(f"{path} is {found.found.condition.value}: {found.found.problem}")
        step, digest = found.found.step, digest_of(found)
    if only_if_none and pin_notes(folder, lambda _: digest).get(step):
        note = None
    changed = pin(folder, step, note, digest)
    return Pinned(str(path), step, True, changed, pin_notes(folder).get(step, ""))


def unpin_checkpoint(path: Path) -> Pinned:
    """Take the pin of a checkpoint back, whatever has become of it. Raises CheckpointNotFoundError."""
    step = _named_step(path)
    if step is None:
        step = open_checkpoint(path).found.step
    return Pinned(str(path), step, False, unpin(path.resolve().parent, step))


def _named_step(path: Path) -> int | None:
    """The step of a checkpoint of Lightning's, by its record; None of others."""
    named = path.resolve()
    if not os.path.lexists(named) or not (named.parent / named_records.FOLDER).is_dir():
        return None
    found = [one.manifest for one in named_records.records_of(named)[:1] if not one.is_pending]
    return found[0].step if found and found[0] is not None else None
