"""Which process this is, and whether another one lives."""

import os
import socket
import time
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from keepstep.plan.lock import Process


def this_process() -> Process:
    """This process."""
    return _process(os.getpid())


@lru_cache(maxsize=4)
def _process(pid: int) -> Process:
    boot = _text("/proc/sys/kernel/random/boot_id").strip()
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return Process(socket.gethostname(), pid, boot, namespace, _started(pid) or "")


def neighbour(pid: int, started: str) -> Process:
    """A process beside this one, under the same kernel and in the same namespace."""
    return replace(this_process(), pid=pid, started=started)


def lives(process: Process) -> bool:
    """Whether a neighbour of this process lives (see `Process.is_neighbour_of`). One that has ended and that nobody
    has waited for does not."""
    return _started(process.pid) == process.started


def seconds_since_start() -> float | None:
    """How long ago this process began, by a clock that nobody sets; None where the system does not tell."""
    started = _started(os.getpid())
    if started is None or not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")
    return max(0.0, seconds)


def _started(pid: int) -> str | None:
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return None if len(fields) < 20 or fields[0] in ("Z", "X") else fields[19]


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
