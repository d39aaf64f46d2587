"""Notes in the folders of runs: which lines were begun from a run, and from which checkpoint a line was begun."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from keepstep.plan import layout
from keepstep.plan.fork import Fork
from keepstep.storage.local import make_folders, replace_text
from keepstep.storage.plain import NotPlainError, read_plain

logger = logging.getLogger("keepstep")

_FORKS = "forks.json"
_ORIGIN = "origin.json"
_LONGEST = 4 * 1024 * 1024


@dataclass(frozen=True)
class Origin:
    """The checkpoint that a line was begun from: of the run with this name, whose folder lies beside."""

    run: str
    step: int

    @property
    def text(self) -> str:
        return f"{self.run}/{layout.checkpoint_name(self.step)}"


def read_forks(folder: Path) -> list[Fork]:
    """Lines that were begun from a run, oldest first."""
    entries = _read(folder / layout.KEEPSTEP_FOLDER / _FORKS)
    found = []
    for entry in entries if isinstance(entries, list) else []:
        match entry:
            case {"name": str(name), "step": int(step), "submission": str() | None as submission}:
                found.append(Fork(name, step, submission))
            case _:
                logger.warning("%s: ignored an entry that is none: %.80r", folder, entry)
    return found


def note_forks(folder: Path, forks: Sequence[Fork]) -> None:
    """Replace the note. Raises OSError."""
    make_folders(folder / layout.KEEPSTEP_FOLDER)
    text = json.dumps([asdict(fork) for fork in forks], indent=1)
    replace_text(folder / layout.KEEPSTEP_FOLDER / _FORKS, text + "\n")


def read_origin(folder: Path) -> Origin | None:
    """The checkpoint that a line was begun from; None of a run that began with its first step."""
    match _read(folder / layout.KEEPSTEP_FOLDER / _ORIGIN):
        case {"run": str(run), "step": int(step)}:
            return Origin(run, step)
        case _:
            return None


def note_origin(folder: Path, origin: Origin) -> None:
    """Write the note. Raises OSError."""
    replace_text(folder / layout.KEEPSTEP_FOLDER / _ORIGIN, json.dumps(asdict(origin)) + "\n")


def _read(path: Path) -> Any:
    try:
        return json.loads(read_plain(path, _LONGEST))
    except (FileNotFoundError, NotADirectoryError, NotPlainError, ValueError, RecursionError):
        return None
