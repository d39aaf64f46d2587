"""Ends a process and all that it has started: launchers give each rank a session of its own."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_GRACE_SECONDS = 10


@dataclass(frozen=True)
class _Process:
    """Known by its number and its start: a rank whose launcher has died gets another parent."""

    pid: int
    parent: int = field(compare=False)
    started: str


def end_all(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, give it some seconds, and then end it and its descendants."""
    family = descendants(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS if family else 1)
    for one in {*family, *descendants(process.pid)}:
        if _look(one.pid) == one:  # and no other process that has got its number since
            with suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 1
    while any(_look(one.pid) == one for one in family) and time.monotonic() < deadline:
        time.sleep(0.01)


def descendants(pid: int) -> set[_Process]:
    """The processes below one, as /proc tells; none where there is no /proc."""
    everything = [one for path in Path("/proc").glob("[0-9]*") if (one := _look(int(path.name))) is not None]
    found: set[_Process] = set()
    parents = {pid}
    while parents:
        children = {one for one in everything if one.parent in parents} - found
        found |= children
        parents = {one.pid for one in children}
    return found


def _look(pid: int) -> _Process | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] == "Z" else _Process(pid, int(fields[1]), fields[19])
