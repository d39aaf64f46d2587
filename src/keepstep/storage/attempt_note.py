"""What the ranks leave for keepstep's own launcher: how far an attempt came, and how it ended.

The launcher names a folder in the environment; the main process writes there. Without it nothing is written.
"""

import os
from pathlib import Path

from keepstep.plan.restarts import AttemptEnd

VARIABLE = "KEEPSTEP_ATTEMPT_FOLDER"
_START, _STEPPED, _CODE = "start", "stepped", "code"


def note_begin(start: int) -> None:
    """The job begins after `start` completed steps."""
    _write(_START, start)


def note_step(step: int) -> None:
    """The attempt has completed its first step."""
    _write(_STEPPED, step)


def note_code(code: int) -> None:
    """The job ends with this exit code."""
    _write(_CODE, code)


def read_end(folder: Path, otherwise: int) -> AttemptEnd:
    """How an attempt ended.

    Args:
        folder: that the ranks were told of.
        otherwise: the exit code where none was left.
    """
    code, start = _read(folder / _CODE), _read(folder / _START)
    return AttemptEnd(otherwise if code is None else code, start, _read(folder / _STEPPED) is not None)


def _write(name: str, number: int) -> None:
    folder = os.environ.get(VARIABLE)
    if folder is None or os.environ.get("RANK", "0") != "0":
        return
    # Whole or not at all: the process may be killed at any moment.
    scratch = Path(folder) / f"{name}.new"
    scratch.write_text(str(number))
    scratch.replace(Path(folder) / name)


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return None
