"""Which line of a run its folder goes on with, once an earlier checkpoint was asked for.

The checkpoints beyond it are still there until the first save of the new line sets them aside. If that start dies
before, the next one must not take them for the newest.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.plan import layout
from keepstep.plan.manifest import Manifest
from keepstep.storage.local import make_folders, replace_text

NAME = "line.json"


@dataclass(frozen=True)
class Line:
    """The run went on from `step` in this attempt. What earlier attempts saved beyond it is of an abandoned line.

    `submission`: tells the submission of the job that asked for it from others, where something does.
    `source`: where the run went on from, if that lies in another folder.
    """

    step: int
    attempt: int
    submission: str | None = None
    source: str | None = None


def note_line(folder: Path, line: Line) -> None:
    """Note that the run goes on from an earlier checkpoint. Raises OSError."""
    place = folder / layout.KEEPSTEP_FOLDER
    make_folders(place)
    replace_text(place / NAME, json.dumps(vars(line)) + "\n")


def read_line(folder: Path) -> Line | None:
    """What was noted last; None where nothing was.

    Raises:
        CouldNotLookError: it cannot be read. Which line is the present one is then not known.
    """
    path = folder / layout.KEEPSTEP_FOLDER / NAME
    try:
        found = json.loads(path.read_text())
        return Line(int(found["step"]), int(found["attempt"]), _text(found, "submission"), _text(found, "source"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CouldNotLookError(f"cannot read {path}: {error}. Delete it to take the newest checkpoint") from error


def _text(found: dict[str, object], name: str) -> str | None:
    value = found.get(name)
    return value if isinstance(value, str) else None


def is_left(line: Line | None, step: int, attempt: int) -> bool:
    """Whether a checkpoint that this attempt saved is of a line that was abandoned."""
    return line is not None and step > line.step and attempt < line.attempt


def abandoned_by(line: Line | None) -> Callable[[int, Manifest | None], bool]:
    """Tells whether a checkpoint (its step and manifest) is of a line that was abandoned."""

    def is_abandoned(step: int, manifest: Manifest | None) -> bool:
        return manifest is not None and is_left(line, step, manifest.attempt)

    return is_abandoned
