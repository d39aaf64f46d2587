"""Samples in plain tar files, in the layout of webdataset."""

from typing import Any, ClassVar

from keepstep.data.files.base import FileDataset, RawFile
from keepstep.data.files.members import NAME_END, SIZE, find_members, split_name
from keepstep.storage.file_index import Arrays


class TarSamples(FileDataset[RawFile]):
    """See `keepstep.data.files.tar`."""

    endings: ClassVar[tuple[str, ...]] = (".tar",)
    kind: ClassVar[str] = "members"
    arrays: ClassVar[tuple[str, ...]] = ("first", "members", "names")
    opened = RawFile

    def build(self, path: str) -> Arrays:
        """Find the members."""
        return find_members(path)

    def count(self, arrays: Arrays) -> int:
        """Samples."""
        return len(arrays["first"]) - 1

    def length_of(self, index: int) -> int:
        """The bytes of all members of a sample; nothing is read for it."""
        number, row = self._locate(index)
        opened = self._file(number)
        begin, end = _range(opened, row)
        return int(opened.arrays["members"][begin:end, SIZE].sum())

    def _record(self, opened: RawFile, row: int, path: str) -> Any:
        begin, end = _range(opened, row)
        sample: dict[str, Any] = {"__key__": self._row_name(opened, row)}
        for member in range(begin, end):
            offset, size, _ = (int(value) for value in opened.arrays["members"][member])
            sample[split_name(_name(opened, member))[1]] = opened.read(offset, size)
        return sample

    def _row_name(self, opened: RawFile, row: int) -> str:
        return split_name(_name(opened, _range(opened, row)[0]))[0]


def _range(opened: RawFile, row: int) -> tuple[int, int]:
    first = opened.arrays["first"]
    return int(first[row]), int(first[row + 1])


def _name(opened: RawFile, member: int) -> str:
    members = opened.arrays["members"]
    begin = int(members[member - 1, NAME_END]) if member else 0
    return bytes(opened.arrays["names"][begin : int(members[member, NAME_END])]).decode("utf-8", "surrogateescape")
