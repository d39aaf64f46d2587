"""`.keepstep/exit.json`: how the last attempt of a run ended, for whoever starts it again."""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from keepstep.plan import layout
from keepstep.storage.local import make_folders, replace_text

NAME = "exit.json"


def write_exit(folder: Path, outcome: str, code: int, **more: Any) -> None:
    """Note how an attempt ended.

    Args:
        folder: the run's folder.
        outcome: "stopped", "failed" or "finished".
        code: the exit code that goes with it.
        more: what else is known.

    Raises:
        OSError: it cannot be written.
    """
    place = folder / layout.KEEPSTEP_FOLDER
    make_folders(place)
    note = {"outcome": outcome, "code": code, **more, "launch": _launch(), "time": round(time.time(), 3)}
    replace_text(place / NAME, json.dumps(note, indent=1) + "\n")


def read_exit(folder: Path) -> dict[str, Any]:
    """The note of the last attempt; empty when there is none, or none that can be read."""
    try:
        note = json.loads((folder / layout.KEEPSTEP_FOLDER / NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def forget_exit(folder: Path) -> None:
    """A new attempt is at work: how the one before ended says nothing any more."""
    with contextlib.suppress(OSError):
        (folder / layout.KEEPSTEP_FOLDER / NAME).unlink()


def is_restart_after_stop(folder: Path) -> bool:
    """Whether torch elastic has started this process again although the attempt before it ended by a stop request."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if not restarts.isdecimal() or int(restarts) < 1:
        return False
    note = read_exit(folder)
    return note.get("outcome") == "stopped" and note.get("launch") == _launch() is not None


def _launch() -> str | None:
    return os.environ.get("TORCHELASTIC_RUN_ID")
