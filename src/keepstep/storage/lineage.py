"""Notes in the folders of runs: which lines were begun from a run, and from which checkpoint a line was begun."""

import json
import logging
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from keepstep.plan import layout
from keepstep.plan.fork import Fork
from keepstep.storage.local import create_text, make_folders, replace_text
from keepstep.storage.plain import NotPlainError, read_plain

logger = logging.getLogger("keepstep")

FORKS = "forks"
ORIGIN = "origin.json"
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
    """Lines that were begun from a run, oldest first. Raises OSError when they cannot be listed."""
    notes = folder / layout.KEEPSTEP_FOLDER / FORKS
    try:
        names = [name for file in os.listdir(notes) if (name := file.removesuffix(".json")) != file]
    except FileNotFoundError:
        return []
    found = []
    # Only names that this run's lines have: a name leads to a folder that is written to.
    for name in sorted((name for name in names if _number(folder, name)), key=lambda name: _number(folder, name)):
        match _read(notes / f"{name}.json"):
            case {"step": int(step), "submission": str() | None as submission} if step is not True and step >= 0:
                found.append(Fork(name, step, submission))
            case other:
                logger.warning("%s: ignored the note of %s, which is none: %.80r", folder, name, other)
    return found


def note_fork(folder: Path, fork: Fork) -> None:
    """Note that a line is begun, in one step.

    Raises:
        FileExistsError: its name is taken by another.
        OSError: it cannot be written.
    """
    notes = folder / layout.KEEPSTEP_FOLDER / FORKS
    make_folders(notes)
    text = json.dumps({"step": fork.step, "submission": fork.submission}) + "\n"
    create_text(notes / f"{fork.name}.json", text)


def _number(folder: Path, name: str) -> int:
    found = re.fullmatch(re.escape(folder.name) + r"\.fork-([1-9][0-9]{0,8})", name, re.ASCII)
    return int(found[1]) if found else 0


def read_origin(folder: Path) -> Origin | None:
    """The checkpoint that a line was begun from; None of a run that began with its first step."""
    match _read(folder / layout.KEEPSTEP_FOLDER / ORIGIN):
        case {"run": str(run), "step": int(step)} if run == Path(run).name and step >= 0:
            return Origin(run, step)
        case _:
            return None


def note_origin(folder: Path, origin: Origin) -> None:
    """Write the note. Raises OSError."""
    replace_text(folder / layout.KEEPSTEP_FOLDER / ORIGIN, json.dumps(asdict(origin)) + "\n")


def _read(path: Path) -> Any:
    try:
        return json.loads(read_plain(path, _LONGEST))
    except (FileNotFoundError, NotADirectoryError, NotPlainError, ValueError, RecursionError):
        return None
