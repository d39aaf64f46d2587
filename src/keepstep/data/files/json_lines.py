"""Records of JSON, one a line."""

import json
from typing import Any, ClassVar

from keepstep.data.files.base import FileDataset, RawFile
from keepstep.data.files.lines import find_lines
from keepstep.errors import DataError
from keepstep.storage.file_index import Arrays


class JsonLines(FileDataset[RawFile]):
    """See `keepstep.data.files.jsonl`."""

    endings: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")
    kind: ClassVar[str] = "lines"
    arrays: ClassVar[tuple[str, ...]] = ("records",)
    opened = RawFile

    def build(self, path: str) -> Arrays:
        """Find the lines."""
        return find_lines(path)

    def count(self, arrays: Arrays) -> int:
        """Lines that are not blank."""
        return len(arrays["records"][0]) - 1

    def length_of(self, index: int) -> int:
        """The length of a record in bytes; nothing is read for it."""
        number, row = self._locate(index)
        begin, end = _span(self._file(number), row)
        return end - begin

    def _record(self, opened: RawFile, row: int, path: str) -> Any:
        begin, end = _span(opened, row)
        try:
            return json.loads(opened.read(begin, end - begin))
        except (ValueError, RecursionError) as error:
            line = int(self._row_name(opened, row))
            raise DataError(f"{path}, line {line}: no JSON: {error}") from error

    def _row_name(self, opened: RawFile, row: int) -> str:
        records = opened.arrays["records"]
        return str(int(records[1, row]) + 1 if len(records) > 1 else row + 1)


def _span(opened: RawFile, row: int) -> tuple[int, int]:
    starts = opened.arrays["records"][0]
    return int(starts[row]), int(starts[row + 1])
