"""Rows of Parquet files, read by row groups."""

import bisect
import os
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from keepstep.data.files.base import FileDataset
from keepstep.data.files.finding import Paths
from keepstep.errors import ConfigError, DataError
from keepstep.storage.file_index import Arrays, Indexed


class ParquetFile:
    """An open Parquet file.

    Args:
        path: the file.
        indexed: `ends`, the number of rows up to the end of each row group.
    """

    def __init__(self, path: str, indexed: Indexed) -> None:
        self.ends: list[int] = indexed.arrays["ends"].tolist()
        self._path = path
        # Read with pread: a mapped file that is cut short would end the process.
        self._file = _parquet().ParquetFile(path, memory_map=False, pre_buffer=False)

    def group(self, number: int, columns: Sequence[str] | None) -> Any:
        """The table of one row group."""
        try:
            return self._file.read_row_group(number, columns=columns, use_threads=False).combine_chunks()
        except _arrow_errors() as error:
            raise DataError(f"{self._path}, row group {number}: cannot be read: {error}") from error

    def missing(self, columns: Sequence[str]) -> list[str]:
        """Those of the columns that the file has not."""
        return [column for column in columns if column not in self._file.schema_arrow.names]


class ParquetRows(FileDataset[ParquetFile]):
    """See `keepstep.data.files.parquet`."""

    endings: ClassVar[tuple[str, ...]] = (".parquet",)
    kind: ClassVar[str] = "row groups"
    arrays: ClassVar[tuple[str, ...]] = ("ends",)
    opened = ParquetFile

    def __init__(self, paths: Paths, columns: Sequence[str] | None = None) -> None:
        super().__init__(paths)
        _parquet()
        self.columns = None if columns is None else list(columns)
        if self.columns is not None:
            self.data_settings = f"columns {self.columns}"
        # The row group that was read last: neighbours are read one after the other.
        self._group: tuple[ParquetFile, int, Any] | None = None

    def build(self, path: str) -> Arrays:
        """Read the file's footer."""
        if not os.path.getsize(path):
            return {"ends": np.empty(0, dtype=np.int64)}
        try:
            about = _parquet().read_metadata(path)
        except _arrow_errors() as error:
            raise DataError(f"{path}: no Parquet file, or a damaged one: {error}") from error
        rows = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
        return {"ends": np.cumsum(rows, dtype=np.int64)}

    def count(self, arrays: Arrays) -> int:
        """Rows."""
        return int(arrays["ends"][-1]) if len(arrays["ends"]) else 0

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_group": None}

    def _record(self, opened: ParquetFile, row: int, path: str) -> Any:
        number = bisect.bisect_right(opened.ends, row)
        group = self._group
        if group is None or group[0] is not opened or group[1] != number:
            self._check_columns(opened, path)
            group = self._group = None  # two of them would be in memory while the next is read
            group = self._group = opened, number, opened.group(number, self.columns)
        table = group[2]
        place = row - (opened.ends[number - 1] if number else 0)
        return {name: table.column(name)[place].as_py() for name in table.column_names}

    def _check_columns(self, opened: ParquetFile, path: str) -> None:
        if missing := opened.missing(self.columns or ()):
            raise DataError(f"{path}: has no column {', '.join(missing)}")


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("Parquet files need pyarrow: pip install 'keepstep[data]'") from None
    return pyarrow.parquet


def _arrow_errors() -> tuple[type[BaseException], ...]:
    import pyarrow

    return pyarrow.ArrowException, OSError
