"""Merges JSON lines and Parquet files, a piece at a time."""

import gzip
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import IO, Any

Order = Iterator[tuple[int, int]]
_ROWS = 65536


class _Open:
    """Opens each part when its first rows are asked for, and closes it when its last are taken."""

    def __init__(self, paths: Sequence[Path], reader: Callable[[Path], Iterator[Any]]) -> None:
        self._paths, self._reader = paths, reader
        self._open: dict[int, Iterator[Any]] = {}

    def take(self, index: int, count: int) -> list[Any]:
        if index not in self._open:
            self._open[index] = self._reader(self._paths[index])
        return list(islice(self._open[index], count))

    def close(self) -> None:
        self._open.clear()


def merge_lines(paths: Sequence[Path], order: Order, scratch: Path, target: Path) -> None:
    """Merge files of JSON lines, compressed or not."""
    with ExitStack() as closing:
        out = closing.enter_context(_writer(scratch, target.suffix))
        parts = _Open(paths, _lines)
        closing.callback(parts.close)
        for index, count in order:
            while count > 0:
                out.write(b"".join(parts.take(index, min(count, _ROWS))))
                count -= _ROWS


def _lines(path: Path) -> Iterator[bytes]:
    if path.suffix == ".gz":
        with gzip.open(path) as file:
            yield from file
    elif path.suffix == ".zst":
        import pyarrow as pa

        with pa.CompressedInputStream(pa.OSFile(str(path)), "zstd") as stream, io.BufferedReader(stream) as lines:
            yield from lines
    else:
        with path.open("rb") as plain:
            yield from plain


def _writer(scratch: Path, suffix: str) -> IO[bytes] | Any:
    if suffix == ".gz":
        return gzip.GzipFile(scratch, "wb", mtime=0)
    if suffix == ".zst":
        import pyarrow as pa

        return pa.CompressedOutputStream(pa.OSFile(str(scratch), "wb"), "zstd")
    return scratch.open("wb")


def merge_parquet(paths: Sequence[Path], order: Order, scratch: Path, target: Path) -> None:
    """Merge Parquet files; columns that some of them lack are null there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.unify_schemas([pq.read_schema(path) for path in paths] or [pa.schema([])], promote_options="permissive")
    compression = _compression_of(paths[0]) if paths else "NONE"
    parts: dict[int, _Table] = {}
    waiting: list[Any] = []
    with pq.ParquetWriter(scratch, schema, compression=compression) as writer:
        for index, count in order:
            part = parts.setdefault(index, _Table(paths[index]))
            waiting += part.take(count)
            if part.left == 0:
                del parts[index]
            if sum(len(piece) for piece in waiting) >= _ROWS:
                writer.write_table(_joined(waiting, schema))
                waiting = []
        if waiting:
            writer.write_table(_joined(waiting, schema))


def _compression_of(path: Path) -> str:
    import pyarrow.parquet as pq

    found: str = pq.ParquetFile(path).metadata.row_group(0).column(0).compression
    return "NONE" if found == "UNCOMPRESSED" else found


class _Table:
    """The rows of a Parquet file, front to back."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(path)
        self._batches = self._file.iter_batches(batch_size=_ROWS)
        self._rest: Any = None
        self.left = self._file.metadata.num_rows

    def take(self, count: int) -> list[Any]:
        pieces = []
        while count:
            if self._rest is None or not len(self._rest):
                self._rest = next(self._batches)
            piece = self._rest.slice(0, count)
            self._rest = self._rest.slice(len(piece))
            pieces.append(piece)
            count -= len(piece)
            self.left -= len(piece)
        return pieces


def _joined(pieces: Sequence[Any], schema: Any) -> Any:
    import pyarrow as pa

    # The empty table comes first, so that columns stand in its order.
    tables = [schema.empty_table(), *(pa.Table.from_batches([piece]) for piece in pieces)]
    return pa.concat_tables(tables, promote_options="permissive").cast(schema)
