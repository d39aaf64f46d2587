"""`scores.jsonl` of a run: rows are only ever added, whole, and one checkpoint is scored on one set once."""

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.plan import layout
from keepstep.plan.scores import FILE, FINAL, SCORED, Score, from_lines, last_words, to_line
from keepstep.storage.local import make_folders, sync_folder

_LOCK = f"{layout.KEEPSTEP_FOLDER}/scores.lock"
# What a lock answers where a file system has none: then a line that is written in one call must do.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
# Locks of the system belong to processes on some network file systems.
_own_threads = threading.Lock()


def read_scores(folder: Path) -> tuple[Score, ...]:
    """All rows, oldest first; lines that are none are left out.

    Raises:
        CouldNotLookError: the file is there and cannot be read.
    """
    return from_lines(_text(folder / FILE))[0]


def unreadable_lines(folder: Path) -> int:
    """How many lines of the file are no rows. Raises CouldNotLookError."""
    return from_lines(_text(folder / FILE))[1]


class ScoreFile:
    """The rows of a run, parsed only when the file is another one than at the last look.

    Args:
        folder: the run's folder, or another one that watchers share.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[tuple[str, str], Score] = {}

    def last_words(self) -> dict[tuple[str, str], Score]:
        """As `keepstep.plan.scores.last_words`. Raises CouldNotLookError."""
        stamp = _stamp(self._folder / FILE)
        if stamp is None or stamp != self._stamp:
            self._known = last_words(read_scores(self._folder))
            self._stamp = stamp
        return self._known


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def add_score(folder: Path, score: Score, *, reopens: bool = False) -> bool:
    """Add a row and sync it.

    Args:
        folder: the run's folder, or another one that watchers share.
        score: the row.
        reopens: whether a failure, or a mark, is not final for once.

    Returns:
        False, and nothing is changed, where the checkpoint has a final row for this set already.

    Raises:
        OSError: it cannot be written (the disk is full, or the folder was moved, say); the file is as before.
        CouldNotLookError: it cannot be read.
    """
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "it is gone: was it moved?", str(folder))
    make_folders(folder / layout.KEEPSTEP_FOLDER)
    path = folder / FILE
    with _locked(folder / _LOCK):
        present = last_words(read_scores(folder)).get(score.key)
        if present is not None and present.outcome in ((SCORED,) if reopens else FINAL):
            return False
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            _append(descriptor, to_line(score).encode() + b"\n")
        finally:
            os.close(descriptor)
        if is_new:
            sync_folder(folder)
    return True


def _append(descriptor: int, line: bytes) -> None:
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        # Of a writer that died, or an editor that ends no line: it stays, on a line of its own.
        line = b"\n" + line
    try:
        done = os.write(descriptor, line)
        if done < len(line):
            raise OSError(errno.ENOSPC, "the disk is full: only a part of a row could be written")
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with _own_threads:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            yield
        finally:
            os.close(descriptor)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise CouldNotLookError(f"cannot read {path}: {error}") from error
