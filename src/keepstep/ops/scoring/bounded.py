"""Runs another program with lower priority, and ends all of it with whoever asked for it.

Run as a script, without the rest of keepstep: `python bounded.py NICE FD COMMAND...`. FD is a pipe that nobody writes
to: when its other end closes, since the watcher has died or wants no more, the program and all that it has started are
ended.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time

_SET_CHILD_SUBREAPER, _SET_DEATH_SIGNAL = 36, 1
_NOT_FOUND, _NOT_RUN = 127, 126
_GRACE_SECONDS = 5.0


def main(nice: int, pipe: int, command: list[str]) -> None:
    """Run `command`, then end as it ended."""
    if sys.platform == "linux":
        # What a scorer leaves behind becomes a child of this process, whatever session it has made for itself.
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
    with contextlib.suppress(OSError):
        os.nice(nice)
    wake, noted = os.pipe()
    os.set_blocking(noted, False)
    signal.set_wakeup_fd(noted)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the watcher's
    child = _begin(command, os.getpid())
    status = None
    while status is None:
        ready = select.select([pipe, wake], [], [])[0]
        is_over = pipe in ready
        if wake in ready:
            is_over |= signal.SIGTERM in os.read(wake, 4096)
        status = _status_of(child)
        if is_over and status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGTERM)
            status = _wait(child, _GRACE_SECONDS)
            break
    _end_all()
    _leave(_status_of(child) if status is None else status)


def _begin(command: list[str], parent: int) -> int:
    child = os.fork()
    if child:
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        return child
    os.setpgid(0, 0)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(_NOT_RUN)
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        print(f"{command[0]}: there is no such program", file=sys.stderr, flush=True)
        os._exit(_NOT_FOUND)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_NOT_RUN)


_ended: dict[int, int] = {}


def _status_of(child: int) -> int | None:
    """How a process has ended; None while it runs. Others that have ended are reaped with it."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            _ended[pid] = status
    return _ended.get(child)


def _wait(child: int, seconds: float) -> int | None:
    until = time.monotonic() + seconds
    while (status := _status_of(child)) is None and time.monotonic() < until:
        time.sleep(0.02)
    return status


def _end_all() -> None:
    """Kill what is left below this process; orphans come up to it one generation at a time."""
    for _ in range(1000):
        left = _below(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _status_of(0)
        if not left:
            return
        time.sleep(0.005)


def _below(root: int) -> list[int]:
    parents = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        if name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    parents[int(name)] = int(fields[1])
    found: list[int] = []
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += level
    return found


def _leave(status: int | None) -> None:
    """End as the program has ended, by a signal too."""
    code = _NOT_RUN if status is None else os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    time.sleep(1)
    os._exit(_NOT_RUN)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
