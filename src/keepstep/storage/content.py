"""Digests of whole files, remembered by path, size and times: what has not changed is not read again."""

import errno
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import xxhash

logger = logging.getLogger("keepstep")

_READ_SIZE = 4 * 1024 * 1024
# A file that was written just now may be written again without its times changing: clocks of file systems are coarse.
_SETTLED_NS = 2_000_000_000
_TELL_SECONDS = 10.0
_BUSY_SECONDS = 5.0
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS digests (path TEXT PRIMARY KEY, size INTEGER, modified INTEGER, changed INTEGER, "
    "digest TEXT)"
)
_ASK = "SELECT digest FROM digests WHERE path = ? AND size = ? AND modified = ? AND changed = ?"
_NOTE = "INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?, ?)"


def cache_file() -> Path:
    """Where digests are remembered: `$XDG_CACHE_HOME/keepstep/digests.sqlite`, by default below `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "keepstep" / "digests.sqlite"


@dataclass(frozen=True)
class _Stamp:
    size: int
    modified: int
    changed: int


class FileDigests:
    """Tells the content of files: xxh3-128 of all bytes, as 32 hex digits. A context manager.

    Args:
        cache: the file that digests are remembered in; None remembers nothing. One that cannot be used costs time, and
            nothing else.
        rehash: read every file, also those that are remembered.

    Attributes:
        bytes_read: how much was read, because it was not remembered.
    """

    def __init__(self, cache: Path | None = None, *, rehash: bool = False) -> None:
        self.bytes_read = 0
        self._rehash = rehash
        self._known: dict[str, str] = {}
        self._told = time.monotonic()
        self._table = None if cache is None else _open(cache)

    def of(self, path: str | Path) -> str:
        """The digest of one file.

        Raises:
            OSError: it cannot be read, or is no regular file.
        """
        place = os.path.abspath(path)
        if place not in self._known:
            self._known[place] = self._remembered_or_read(place)
        return self._known[place]

    def of_all(self, paths: Iterable[str | Path]) -> list[str]:
        """The digests of several files, in order."""
        return [self.of(path) for path in paths]

    def close(self) -> None:
        """Let go of the cache."""
        if self._table is not None:
            self._table.close()
            self._table = None

    def __enter__(self) -> "FileDigests":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _remembered_or_read(self, place: str) -> str:
        before = _stamp(place)
        row = None
        if self._table is not None and not self._rehash:
            row = self._ask(_ASK, (place, before.size, before.modified, before.changed))
        if row is not None:
            return str(row[0])
        digest = self._read(place, before.size)
        # One that changes while it is read, or has just been written, is not remembered.
        is_settled = time.time_ns() - max(before.modified, before.changed) > _SETTLED_NS
        if self._table is not None and is_settled and _stamp(place) == before:
            self._ask(_NOTE, (place, before.size, before.modified, before.changed, digest))
        return digest

    def _ask(self, text: str, values: tuple[object, ...]) -> Any:
        """Ask the cache, or tell it; one that does not answer once is not asked again."""
        assert self._table is not None
        try:
            return self._table.execute(text, values).fetchone()
        except sqlite3.Error as error:
            logger.info("digests of files are not remembered: %s", error)
            self.close()
            return None

    def _read(self, place: str, size: int) -> str:
        state, done = xxhash.xxh3_128(), 0
        for piece in _pieces(place):
            state.update(piece)
            done += len(piece)
            if time.monotonic() - self._told > _TELL_SECONDS:
                self._told = time.monotonic()
                logger.info("reading %s for its digest: %.1f of %.1f GiB", place, done / 2**30, size / 2**30)
        self.bytes_read += done
        return state.hexdigest()


def _open(cache: Path) -> sqlite3.Connection | None:
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        table = sqlite3.connect(cache, timeout=_BUSY_SECONDS, isolation_level=None)
        # A power cut may take the cache; what it says is said again by reading.
        table.execute("PRAGMA synchronous = OFF")
        table.execute(_SCHEMA)
    except (OSError, sqlite3.Error) as error:
        logger.info("digests of files are not remembered: %s: %s", cache, error)
        return None
    return table


def _stamp(place: str) -> _Stamp:
    found = os.stat(place)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "no regular file", place)
    return _Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _pieces(place: str) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(_READ_SIZE))
    with open(place, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            yield buffer[:count]
