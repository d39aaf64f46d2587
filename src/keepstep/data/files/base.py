"""What all data sets over files have in common: position to record, without reading what comes before."""

import bisect
import itertools
import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from keepstep.data.files.finding import Paths, find_files
from keepstep.errors import DataError
from keepstep.storage.file_index import Arrays, Indexed, Stamp, index_of

# Files that are open at a time in one process.
_OPEN = 32


class OpenFile(Protocol):
    """An open file with its index; it is closed when nothing refers to it any more."""

    def __init__(self, path: str, indexed: Indexed) -> None: ...


Opened = TypeVar("Opened", bound=OpenFile)


class FileDataset(Generic[Opened]):
    """A map-style data set over files. Nothing is opened before it is needed.

    Loader workers, however they are started, and forked processes may share it: no position of an open file is used.

    Args:
        paths: files, patterns or folders.

    Attributes:
        files: all files, absolute, in order.
        data_settings: what, beside the files, makes the records what they are; None when nothing does.
    """

    endings: ClassVar[tuple[str, ...]]
    kind: ClassVar[str]
    arrays: ClassVar[tuple[str, ...]]
    opened: type[Opened]

    def __init__(self, paths: Paths) -> None:
        self.files = find_files(paths, self.endings)
        self.data_settings: str | None = None
        self._base = os.path.commonpath([os.path.dirname(file) for file in self.files])
        self._ends: list[int] | None = None
        self._stamps: list[Stamp] = []
        # Indexes that could not be remembered.
        self._kept: dict[int, Indexed] = {}
        self._open: OrderedDict[int, Opened] = OrderedDict()
        self._process = os.getpid()

    def build(self, path: str) -> Arrays:
        """Read a file once and tell where its records are."""
        raise NotImplementedError

    def count(self, arrays: Arrays) -> int:
        """Records of a file."""
        raise NotImplementedError

    def data_files(self) -> tuple[str, ...]:
        """What identifies the data set: the content of these files."""
        return self.files

    def collate(self, samples: Sequence[Any]) -> list[Any]:
        """A batch is the list of its records: their fields may differ, and their lengths."""
        return list(samples)

    def id_of(self, index: int) -> str:
        """The name of a record: it stays as it is when the folder of the files is moved."""
        number, row = self._locate(index)
        return f"{self._name(number)}#{self._row_name(self._file(number), row)}"

    def __len__(self) -> int:
        ends = self._known_ends()
        return ends[-1]

    def __getitem__(self, index: int) -> Any:
        number, row = self._locate(index)
        return self._record(self._file(number), row, self.files[number])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def _record(self, opened: Opened, row: int, path: str) -> Any:
        raise NotImplementedError

    def _row_name(self, opened: Opened, row: int) -> str:
        return str(row)

    def _name(self, number: int) -> str:
        return os.path.relpath(self.files[number], self._base)

    def _locate(self, index: int) -> tuple[int, int]:
        """File and record in it."""
        ends = self._known_ends()
        if not -ends[-1] <= index < ends[-1]:
            raise IndexError(f"record {index} of {ends[-1]}")
        index = int(index) % ends[-1]
        number = bisect.bisect_right(ends, index)
        return number, index - (ends[number - 1] if number else 0)

    def _known_ends(self) -> list[int]:
        if self._ends is None:
            counts, stamps = [], []
            for number in range(len(self.files)):
                indexed = self._index(number)
                counts.append(self.count(indexed.arrays))
                stamps.append(indexed.stamp)
                if not indexed.is_at_hand:
                    self._kept[number] = indexed
            self._stamps = stamps
            self._ends = list(itertools.accumulate(counts))
        return self._ends

    def _index(self, number: int) -> Indexed:
        path = self.files[number]
        try:
            return index_of(path, self.kind, self.arrays, self.build)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error

    def _file(self, number: int) -> Opened:
        self._known_ends()
        if self._process != os.getpid():
            # Libraries that read files may keep a position, or threads that a fork does not copy.
            self._open, self._process = OrderedDict(), os.getpid()
        # Taken out and put back in single steps: threads may share it.
        found = self._open.pop(number, None) or self._opened_now(number)
        self._open[number] = found
        if len(self._open) > _OPEN:
            self._open.popitem(last=False)
        return found

    def _opened_now(self, number: int) -> Opened:
        path = self.files[number]
        try:
            known = self._stamps[number]
            is_same = known.is_same_content(Stamp.of(os.stat(path)))
            indexed = self._kept.get(number) or self._index(number) if is_same else None
            if indexed is None or not known.is_same_content(indexed.stamp):
                raise DataError(f"{path}: was changed while the job runs; start it again to see what that means")
            return self.opened(path, indexed)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


class RawFile:
    """A file that is read at places, without a position of its own.

    Args:
        path: the file.
        indexed: where its records are.
    """

    def __init__(self, path: str, indexed: Indexed) -> None:
        self.path, self.arrays = path, indexed.arrays
        self._number = -1
        self._number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the file. Raises DataError when they are not there."""
        parts = []
        while size > 0:
            try:
                part = os.pread(self._number, size, offset)
            except OSError as error:
                raise DataError(f"{self.path}: cannot be read: {error.strerror or error}") from error
            if not part:
                raise DataError(f"{self.path}: ends at byte {offset}, before the record does")
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __del__(self) -> None:
        if self._number >= 0:
            os.close(self._number)
            self._number = -1
