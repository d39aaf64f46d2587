"""Where the records of large files lie, as arrays that are made in one pass and remembered beside the digests."""

import contextlib
import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from keepstep.storage.content import cache_file

logger = logging.getLogger("keepstep")

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
# Raised when the arrays of a kind change.
_FORMAT = 1
# A file that was written just now may be written again without its times changing: clocks of file systems are coarse.
_SETTLED_NS = 2_000_000_000
# To read such a file again is no more work than to remember its index.
_SMALL_BYTES = 64 * 1024
# Smaller arrays are read: each map counts against a limit of the system.
_MAPPED_BYTES = 1024 * 1024
_TOLD_BYTES = 1024**3
_UNUSED_SECONDS = 90 * 24 * 3600
_TOUCH_SECONDS = 24 * 3600


def index_folder() -> Path:
    """Where indexes are remembered: `indexes` beside the digests of files."""
    return cache_file().parent / "indexes"


@dataclass(frozen=True)
class Stamp:
    """What tells that a file is the one that was indexed."""

    size: int
    modified: int
    changed: int
    inode: int

    @staticmethod
    def of(found: os.stat_result) -> "Stamp":
        """From what `os.stat` says."""
        return Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)

    def is_same_content(self, other: "Stamp") -> bool:
        """Whether the bytes are the same as far as can be told: a new link, owner or mode changes none."""
        return (self.size, self.modified) == (other.size, other.modified)


@dataclass(frozen=True)
class Indexed:
    """The index of one file.

    Attributes:
        arrays: by name; large ones are mapped from the cache, not read.
        stamp: of the file that they belong to.
        is_at_hand: whether it can be had again for little: it is in the cache, or the file is small.
    """

    arrays: Arrays
    stamp: Stamp
    is_at_hand: bool


def index_of(path: str, kind: str, names: tuple[str, ...], build: Callable[[str], Arrays]) -> Indexed:
    """The index of a file, from the cache or made now. Of several processes that want it, one makes it.

    Args:
        path: the file, absolute.
        kind: of the index; two kinds of one file are two indexes.
        names: of its arrays.
        build: reads the file and makes them.

    Raises:
        OSError: the file cannot be read, or is no regular file.
    """
    stamp = _stamp(path)
    if stamp.size <= _SMALL_BYTES:
        return Indexed(_built(path, stamp, build), stamp, True)
    folder = index_folder()
    facts = (_FORMAT, kind, path, stamp.size, stamp.modified, stamp.changed, stamp.inode)
    key = xxhash.xxh3_128_hexdigest(repr(facts).encode())
    found = _read(folder, key, names)
    if found is not None:
        return Indexed(found, stamp, True)
    with _turn(folder, key):
        found = _read(folder, key, names)
        if found is not None:
            return Indexed(found, stamp, True)
        arrays = _built(path, stamp, build)
        is_settled = time.time_ns() - max(stamp.modified, stamp.changed) > _SETTLED_NS
        if not (is_settled and _write(folder, key, arrays)):
            return Indexed(arrays, stamp, False)
    return Indexed(_read(folder, key, names) or arrays, stamp, True)


def _built(path: str, stamp: Stamp, build: Callable[[str], Arrays]) -> Arrays:
    if stamp.size >= _TOLD_BYTES:
        logger.info("finding the records of %s (%.1f GiB); this is remembered", path, stamp.size / 2**30)
    arrays = build(path)
    if _stamp(path) != stamp:
        raise OSError(errno.EAGAIN, "it was changed while it was read", path)
    return arrays


def _stamp(path: str) -> Stamp:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "no regular file", path)
    return Stamp.of(found)


def _read(folder: Path, key: str, names: tuple[str, ...]) -> dict[str, Array] | None:
    arrays = {}
    for name in names:
        path = folder / f"{key}.{name}.npy"
        try:
            size = path.stat().st_size
            arrays[name] = np.load(path, mmap_mode="r" if size > _MAPPED_BYTES else None, allow_pickle=False)
            if time.time() - path.stat().st_mtime > _TOUCH_SECONDS:
                os.utime(path)
        except (OSError, ValueError, EOFError):
            return None
    return arrays


def _write(folder: Path, key: str, arrays: Arrays) -> bool:
    try:
        for name, array in arrays.items():
            hidden = folder / f".{key}.{name}.{os.getpid()}.tmp"
            with hidden.open("wb") as file:
                np.save(file, array, allow_pickle=False)
                # A name that points to nothing after a power cut would be an index that lies.
                file.flush()
                os.fsync(file.fileno())
            hidden.replace(folder / f"{key}.{name}.npy")
        _forget_unused(folder)
    except OSError as error:
        logger.info("indexes of files are not remembered: %s: %s", folder, error)
        return False
    return True


@contextlib.contextmanager
def _turn(folder: Path, key: str) -> Iterator[None]:
    """Wait for who makes the same index. Where there are no locks, each makes its own."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


@cache
def _forget_unused(folder: Path) -> None:
    """Once in each process."""
    oldest = time.time() - _UNUSED_SECONDS
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()
