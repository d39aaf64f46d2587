"""Differences that a run was told to accept, in its folder: a command line that is run again accepts the same ones."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from keepstep.plan import layout
from keepstep.plan.guards import Accepted
from keepstep.storage.local import make_folders, replace_text
from keepstep.storage.plain import NotPlainError, read_plain

NAME = "accepted.json"
_LONGEST = 16 * 1024 * 1024


def read_accepted(folder: Path) -> list[Accepted]:
    """What was accepted, oldest first; nothing when there is no such note, or it cannot be understood."""
    try:
        entries = json.loads(read_plain(_path(folder), _LONGEST))
        return [Accepted(str(one["field"]), str(one["saved"]), str(one["now"])) for one in entries]
    except (FileNotFoundError, NotPlainError, ValueError, TypeError, KeyError, RecursionError):
        return []


def note_accepted(folder: Path, accepted: Sequence[Accepted]) -> None:
    """Add to the note. Raises OSError when it cannot be written."""
    before = read_accepted(folder)
    new = [one for one in accepted if one not in before]
    if new:
        make_folders(_path(folder).parent)
        replace_text(_path(folder), json.dumps([asdict(one) for one in [*before, *new]], indent=1) + "\n")


def _path(folder: Path) -> Path:
    return folder / layout.KEEPSTEP_FOLDER / NAME
