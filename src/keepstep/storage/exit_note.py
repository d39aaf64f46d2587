"""`.keepstep/exit.json`: how the last attempt of a run ended, for whoever starts it again."""

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from keepstep.plan import layout
from keepstep.plan.elastic import Launcher
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
    note = {"outcome": outcome, "code": code, **more, "time": round(time.time(), 3)}
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


def this_launcher() -> Launcher | None:
    """The agent of torch elastic that has started this process; None without one."""
    run, restarts = os.environ.get("TORCHELASTIC_RUN_ID"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if run is None or not restarts.isdecimal():
        return None
    # <folder of the agent>/attempt_<n>/<local rank>/error.json. The parent may be a script that was made for this rank.
    parts = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).parents
    agent = str(parts[2]) if len(parts) > 3 else f"process {os.getppid()}"
    return Launcher(run, f"{socket.gethostname()}: {agent}", int(restarts))


def asked_to_stop(note: dict[str, Any]) -> list[Launcher]:
    """Of a note about a stop: the agents of the ranks that got the signal."""
    if note.get("outcome") != "stopped":
        return []
    try:
        return [Launcher(str(one["run"]), str(one["agent"]), int(one["restarts"])) for one in note.get("asked", [])]
    except (TypeError, KeyError, ValueError):
        return []
