"""What `scores.jsonl` says to those who delete: what cannot be read of it may speak for any checkpoint."""

import os
from dataclasses import dataclass
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.plan.scores import FILE, Measured, from_lines, measured


@dataclass(frozen=True)
class ScoreFile:
    """The file at one moment.

    Attributes:
        path: of the file.
        is_there: whether there is one.
        known: what its rows say of each checkpoint.
        unreadable: numbers of the lines that are no rows, from 1.
    """

    path: Path
    is_there: bool = False
    known: tuple[Measured, ...] = ()
    unreadable: tuple[int, ...] = ()

    @property
    def told(self) -> str:
        """Which lines are no rows, in words; the first of many."""
        shown = ", ".join(map(str, self.unreadable[:8])) + (", ..." if len(self.unreadable) > 8 else "")
        return f"{self.path}: {len(self.unreadable)} lines are no scores (line {shown})"


def read_score_file(folder: Path) -> ScoreFile:
    """Read the scores in a folder.

    Raises:
        CouldNotLookError: the file is there and cannot be read.
    """
    path = folder / FILE
    try:
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
    except FileNotFoundError:
        return ScoreFile(path)
    except OSError as error:
        raise CouldNotLookError(f"cannot read {path}: {error}") from error
    rows, others = from_lines(text)
    return ScoreFile(path, True, measured(rows), _unreadable(text) if others else ())


class ScoreReader:
    """Reads the scores of a run again and again, and only what has changed since: the file may be large."""

    def __init__(self) -> None:
        self._stamp: tuple[int, int, int, int] | None = None
        self._read: ScoreFile | None = None

    @property
    def was_there(self) -> bool:
        """Whether the file was ever seen."""
        return self._read is not None

    @property
    def last(self) -> tuple[Measured, ...]:
        """What was known when the file was read last."""
        return () if self._read is None else self._read.known

    def read(self, folder: Path) -> ScoreFile:
        """The scores in the folder, which is the same at each call. Raises as `read_score_file`."""
        path = folder / FILE
        # Looked at before it is read: a row that comes meanwhile makes the next look differ.
        stamp = _stamp(path)
        if self._read is not None and stamp is not None and stamp == self._stamp:
            return self._read
        found = read_score_file(folder)
        if found.is_there:
            self._read, self._stamp = found, stamp
        return found


_readers: dict[str, ScoreReader] = {}


def reader_of(folder: Path) -> ScoreReader:
    """The reader that this process has for a run's folder."""
    return _readers.setdefault(os.path.realpath(folder), ScoreReader())


def _stamp(path: Path) -> tuple[int, int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _unreadable(text: str) -> tuple[int, ...]:
    *lines, last = text.split("\n")
    found = [number for number, line in enumerate(lines, 1) if from_lines(f"{line}\n")[1]]
    return (*found, *([len(lines) + 1] if from_lines(last)[1] else []))
