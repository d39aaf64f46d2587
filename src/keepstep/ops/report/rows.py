"""Reads files of JSON lines that other processes are writing, or have left torn."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

from keepstep.storage.plain import NotPlainError, open_plain

_MOST_LINE = 64 * 1024 * 1024
# So many bytes before the place that was read to are compared: who cuts a file and goes on leaves others.
_COMPARED = 64


class Taker(Protocol):
    """Takes rows one by one, and keeps of them what is needed."""

    def add(self, row: dict[str, Any], /) -> None: ...


T = TypeVar("T", bound=Taker)


class FollowedFile(Generic[T]):
    """A file of JSON lines, of which each look reads what was appended. One that was replaced or cut is read anew.

    Args:
        path: the file.
        make: makes what takes the rows.
    """

    def __init__(self, path: Path, make: Callable[[], T]) -> None:
        self._path, self._make = path, make
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.found = self._make()
        self._file: tuple[int, int] | None = None
        self._offset = self._lines = self._bad = 0
        self._before = b""

    def look(self, notes: list[str], missing: str = "") -> T:
        """All rows until now. What is no row is left out and said.

        Args:
            notes: what is missing or damaged is added here.
            missing: the note for a file that is not there; empty: none.
        """
        try:
            with os.fdopen(open_plain(self._path), "rb") as file:
                self._read(file)
        except FileNotFoundError:
            self._begin_anew()
            notes += [missing] if missing else []
        except (OSError, NotPlainError) as error:
            self._begin_anew()
            notes.append(f"{self._path.name} cannot be read: {error}")
        if self._bad:
            many = f"{self._bad:,} of {self._lines:,} lines are no rows"
            notes.append(f"{self._path.name}: {many}; they are left out")
        return self.found

    def _read(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        identity = (status.st_dev, status.st_ino)
        if identity != self._file or not self._goes_on(file, status.st_size):
            self._begin_anew()
            self._file = identity
        file.seek(self._offset)
        while line := file.readline(_MOST_LINE):
            is_whole = line.endswith(b"\n")
            row = _row(line)
            # A last line without an end is being written, or its writer died: that is no damage.
            if not is_whole and row is None and len(line) < _MOST_LINE:
                break
            self._offset += len(line)
            self._before = (self._before + line[-_COMPARED:])[-_COMPARED:]
            self._lines += is_whole
            if row is not None:
                self.found.add(row)
            elif line.strip():
                self._bad += is_whole

    def _goes_on(self, file: BinaryIO, size: int) -> bool:
        if size < self._offset:
            return False
        file.seek(self._offset - len(self._before))
        return file.read(len(self._before)) == self._before


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
