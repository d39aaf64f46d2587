"""Runs readers in a process of their own, in which what they must not do is seen: code, files, memory, time."""

import json
import mmap
import os
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

# What a reader may take beyond what the process had before, in bytes; and seconds for one input.
MEMORY = 2 << 30
SECONDS = 20
_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pty.spawn", "ctypes.dlopen")
_CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "socket.connect")
_PROJECT = str(Path(__file__).parents[2])
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Watch:
    """Tells what the code inside `with` does that no reader does."""

    def __init__(self, folder: str = "") -> None:
        self.seen: list[str] = []
        self._armed, self._folder = False, os.path.realpath(folder) + os.sep
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._armed:
            return
        if event in _FORBIDDEN or event in _CHANGES or event == "exec" or event == "compile":
            self._note(f"{event}{arguments!r}"[:300])
        elif event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITES:
                self._note(f"{path} is opened for writing")
            elif isinstance(path, str) and not self._may_read(path):
                self._note(f"{path} is opened")

    def _may_read(self, path: str) -> bool:
        return os.path.abspath(path).startswith((self._folder, sys.prefix, sys.base_prefix, _PROJECT, "/proc", "/sys"))

    def _note(self, what: str) -> None:
        self._armed = False
        # Python's own modules are compiled and read when they are imported late.
        stack = "".join(traceback.format_stack(limit=40))
        if "importlib._bootstrap" not in stack and "linecache" not in stack:
            self.seen.append(what)
        self._armed = True

    def __enter__(self) -> "Watch":
        self._armed = True
        signal.alarm(SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._armed = False
        signal.alarm(0)


class Hung(BaseException):
    """An input took too long."""


def _hang(*_: object) -> NoReturn:
    raise Hung


def in_child(work: Callable[[Callable[[str, int], None]], Any]) -> Any:
    """Call `work` in a forked process with little memory. It is given a function to say what it is at.

    Returns:
        What it returned (as JSON), with `grown`: the MiB by which its memory has grown at most.
    """
    place = mmap.mmap(-1, 256)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read)
            signal.signal(signal.SIGALRM, _hang)
            with open("/proc/self/statm") as file:
                pages, resident = map(int, file.read().split()[:2])
            limit = pages * mmap.PAGESIZE + MEMORY
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

            def at(name: str, number: int) -> None:
                place[:] = struct.pack("<q248s", number, name.encode())

            result = work(at)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 - resident * mmap.PAGESIZE // (1 << 20)
            with os.fdopen(write, "w") as pipe:
                json.dump({**result, "grown": peak}, pipe)
            code = 0
        except BaseException:  # noqa: BLE001 - the process ends with it, and the parent says where
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    number, name = struct.unpack("<q248s", place[:])
    where = f"{name.rstrip(bytes(1)).decode()} input {number}"
    assert status == 0, f"the process ended with {os.waitstatus_to_exitcode(status)} at {where}"
    return json.loads(text)
