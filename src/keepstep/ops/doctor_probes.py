"""What `keepstep doctor` tries in its folder, one operation at a time."""

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from keepstep.ops import doctor_reader
from keepstep.plan.doctor_facts import Seen, Tried
from keepstep.storage.buffers import PAGE, PageBuffer
from keepstep.storage.local import exchange

# Long enough for caches of listings of a minute or less to be told from a folder that is not seen at all.
WATCH_SECONDS = 10.0
_FILES = 8
_SIZE = 64 * 1024
_TIMES = 5


def rename_seconds(scratch: Path) -> tuple[float, float]:
    """Seconds of the rename of a folder of one file and of several: a copy takes longer, the more there are. (On this
    machine nobody sees it under way: the kernel lets nobody into a folder in which something is being renamed.)"""
    return _best_rename(scratch / "one", 1), _best_rename(scratch / "several", _FILES)


@dataclass(frozen=True)
class Watched:
    """An operation, and what another process saw of it; `seen` is None where it did not work."""

    tried: Tried
    seen: Seen | None = None


def tried(work: Callable[[], object]) -> Tried:
    """Do something once, and note how it ended and what it took."""
    started = time.monotonic()
    try:
        work()
    except OSError as error:
        return Tried(_words(error), time.monotonic() - started)
    return Tried("", time.monotonic() - started)


def try_write(scratch: Path) -> Tried:
    """Write a small file and read it back."""
    path, data = scratch / "written", os.urandom(PAGE)

    def write() -> None:
        path.write_bytes(data)
        if path.read_bytes() != data:
            raise OSError(errno.EIO, "other bytes were read than were written", str(path))

    return tried(write)


def try_sync(scratch: Path) -> Tried:
    """The sync of a small new file; the median of several."""
    return _median_of(_synced_file(scratch / f"synced-{number}") for number in range(_TIMES))


def try_sync_folder(scratch: Path) -> Tried:
    """The sync of a folder with a new name in it; the median of several."""

    def once(number: int) -> Tried:
        (scratch / f"name-{number}").touch()
        descriptor = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return tried(lambda: os.fsync(descriptor))
        finally:
            os.close(descriptor)

    return _median_of(once(number) for number in range(_TIMES))


def try_exchange(scratch: Path) -> Tried:
    """Let two folders change names in one step."""
    first, second = scratch / "first", scratch / "second"
    first.mkdir()
    second.mkdir()

    def change() -> None:
        if not exchange(first, second):
            raise OSError(errno.ENOTSUP, "the system or the file system cannot")

    return tried(change)


def try_link(scratch: Path) -> Tried:
    """Make a hard link."""
    (scratch / "named").touch()
    return tried(lambda: os.link(scratch / "named", scratch / "named-too"))


def try_direct(scratch: Path) -> Tried:
    """Write a page past the cache."""
    page = PageBuffer(PAGE).view

    def write() -> None:
        flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_DIRECT", 0)
        descriptor = os.open(scratch / "direct", flags)
        try:
            os.pwrite(descriptor, page, 0)
        finally:
            os.close(descriptor)

    if not hasattr(os, "O_DIRECT"):
        return Tried("the system has none")
    return tried(write)


def clock_skew(scratch: Path) -> float:
    """Seconds that the clock of the file system is ahead of this machine's; its steps are as coarse as its clock."""
    path = scratch / "clock"
    before = time.time()
    path.write_bytes(b".")
    after = time.time()
    mtime = path.stat().st_mtime
    return mtime - min(max(mtime, before), after)


class Reader:
    """Another process of this machine that looks at the folder."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def new_file(self, scratch: Path) -> Watched:
        """Write a file and hear when it was seen with all of its content."""
        folder = scratch / "listed"
        folder.mkdir()
        return self._watched(folder / "new", 0, lambda: _write_whole(folder / "new"))

    def rename(self, scratch: Path) -> Watched:
        """Rename a folder with files in it and hear what was seen of it."""
        folder = scratch / "renamed"
        source = folder / "before"
        folder.mkdir()
        _fill(source, _FILES)
        return self._watched(folder / "after", _FILES, lambda: source.rename(folder / "after"))

    def _watched(self, path: Path, files: int, work: Callable[[], object]) -> Watched:
        self._ask({"path": str(path), "files": files, "size": _SIZE, "seconds": WATCH_SECONDS})
        self._answer()
        done = tried(work)
        ended = time.monotonic()
        if done.problem:
            self._process.kill()
            return Watched(done)
        told = json.loads(self._answer())
        late = None if told["seen"] is None else max(0.0, told["seen"] - ended)
        return Watched(done, Seen(late, bool(told["torn"])))

    def _ask(self, wish: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wish) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OSError(errno.EIO, f"the reading process ended with code {self._process.wait()}")
        return line


@contextmanager
def reader() -> Iterator[Reader]:
    """Start one; it is ended with the block. Its clock is this process's: one kernel has one monotonic clock."""
    command = [sys.executable, "-I", "-S", str(doctor_reader.__file__)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Reader(process)
        finally:
            process.kill()


def _synced_file(path: Path) -> Tried:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(descriptor, b"k" * PAGE)
        return tried(lambda: os.fsync(descriptor))
    finally:
        os.close(descriptor)


def _write_whole(path: Path) -> None:
    path.write_bytes(b"k" * _SIZE)


def _fill(folder: Path, files: int) -> None:
    folder.mkdir()
    for number in range(files):
        _write_whole(folder / f"file-{number}")


def _best_rename(folder: Path, files: int) -> float:
    _fill(folder, files)
    there = folder.with_name(f"{folder.name}-renamed")
    seconds = []
    for _ in range(_TIMES):
        started = time.monotonic()
        folder.rename(there)
        seconds.append(time.monotonic() - started)
        folder, there = there, folder
    return min(seconds)


def _median_of(several: Iterator[Tried]) -> Tried:
    done = list(several)
    failed = next((one for one in done if one.problem), None)
    return failed or Tried("", median(one.seconds for one in done))


def _words(error: OSError) -> str:
    return f"{error.strerror or error}"
