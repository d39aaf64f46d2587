"""What a job at work still has to copy to its mirrors, for whoever deletes by hand beside it."""

import contextlib
import json
from collections.abc import Collection
from pathlib import Path

from keepstep.plan import layout
from keepstep.plan.lock import Claim
from keepstep.storage.json_file import read_json
from keepstep.storage.local import make_folders, replace_text
from keepstep.storage.lock import look_at_lock

_NAME = "waiting.json"


def note_waiting(folder: Path, steps: Collection[int]) -> None:
    """Note the steps that wait for their upload, where that changed. Nothing waits: there is no note.

    Raises:
        OSError: it cannot be written.
    """
    path = folder / layout.KEEPSTEP_FOLDER / _NAME
    if not steps:
        path.unlink(missing_ok=True)
    elif set(steps) != _noted(path):
        make_folders(path.parent)
        replace_text(path, json.dumps({"steps": sorted(steps)}))


def waiting_steps(folder: Path) -> frozenset[int]:
    """Steps that wait for their upload; none where no job is at work: a note of one that died says nothing."""
    with contextlib.suppress(OSError):
        if look_at_lock(folder)[0] is Claim.GONE:
            return frozenset()
    return frozenset(_noted(folder / layout.KEEPSTEP_FOLDER / _NAME))


def _noted(path: Path) -> set[int]:
    steps = read_json(path).get("steps")
    return {step for step in steps if type(step) is int} if isinstance(steps, list) else set()
