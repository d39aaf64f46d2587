"""The files of a run's lock: their numbers, who holds them, and how old they are by the file system's own clock."""

import errno
import json
import os
import re
import secrets
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from keepstep.plan import layout
from keepstep.plan.lock import Process
from keepstep.storage.plain import read_plain
from keepstep.storage.process import this_process

_LOCK = re.compile(r"lock-([1-9][0-9]{0,18})", re.ASCII)
_SCRATCH = "lock.new-"
_LONGEST = 4096
_STALE_SECONDS = 600.0
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


def lock_path(folder: Path, number: int) -> Path:
    """The lock of this number."""
    return folder / layout.KEEPSTEP_FOLDER / f"lock-{number}"


def newest(folder: Path, known: int = 0) -> tuple[int, Process | None]:
    """The highest lock's number (0: there is none) and holder (None: it cannot be read). `known`: as in `numbers`."""
    number = max(numbers(folder, known), default=0)
    if not number:
        return 0, None
    return number, holder_in(lock_path(folder, number))


def holder_in(path: Path) -> Process | None:
    """Who has written a lock; None when it is gone or cannot be read."""
    try:
        text = json.loads(read_plain(path, _LONGEST))
        return Process(**{name: text[name] for name in ("host", "pid", "boot", "namespace", "started")})
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


def numbers(folder: Path, known: int = 0) -> list[int]:
    """Of all locks that are listed, and of those that are not yet: mounted drives keep a listing for seconds, and find
    at once what is asked for by name. `known`: a number that there was, from which on names are asked for."""
    try:
        names = os.listdir(folder / layout.KEEPSTEP_FOLDER)
    except FileNotFoundError:
        return []
    found = {int(match[1]) for name in names if (match := _LOCK.fullmatch(name))}
    if known and os.path.lexists(lock_path(folder, known)):
        found.add(known)
    number = max(known, *found, 0) + 1
    while os.path.lexists(lock_path(folder, number)):
        found.add(number)
        number += 1
    return sorted(found)


def beat_of(path: Path) -> float | None:
    """When a lock was touched last; None when it is gone. Opened, since network file systems cache what `stat` says."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)


def make_lock(folder: Path, number: int) -> None:
    """Make a lock file, whole, in one step. Raises FileExistsError when somebody has made it."""
    target = lock_path(folder, number)
    text = json.dumps({**asdict(this_process()), "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
    write_new(target, target.with_name(f"{_SCRATCH}{secrets.token_hex(8)}"), text)


def write_new(target: Path, scratch: Path, text: str) -> None:
    """Make a file, whole, in one step. `scratch`: a free name beside it. Raises FileExistsError when it is there."""
    try:
        _write_new(scratch, text)
        os.link(scratch, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _write_new(target, text)
    finally:
        scratch.unlink(missing_ok=True)


def _write_new(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, f"{text}\n".encode())
        # A lock that a power cut has emptied could not be told from a stranger's, and would be waited for.
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path, lock: Path) -> None:
    """Take away what processes have left that were killed while they made a lock, or watched one."""
    now = lock.stat().st_mtime
    for path in (folder / layout.KEEPSTEP_FOLDER).glob(f"{_SCRATCH}*"):
        with suppress(FileNotFoundError):
            if now - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()


class FileSystemClock:
    """The clock of the file system that a folder lies on."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / layout.KEEPSTEP_FOLDER / f"{_SCRATCH}{secrets.token_hex(8)}"

    def now(self) -> float:
        self._path.write_bytes(b".")
        return self._path.stat().st_mtime

    def __enter__(self) -> "FileSystemClock":
        return self

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)
