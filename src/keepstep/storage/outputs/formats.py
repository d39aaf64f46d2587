"""Rows of one rank in memory, and how each format writes them into a file."""

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from keepstep.errors import ConfigError
from keepstep.storage.local import DurableFile

Row = Mapping[str, Any]
# Bytes that a value is taken to need in memory, beside its own.
_OBJECT = 64


class RowBuffer(Protocol):
    """Rows that are not written yet.

    Attributes:
        suffix: of the file's name.
        rows, bytes: how many, and what they need in memory.
    """

    suffix: str
    rows: int
    bytes: int

    def add(self, rows: Sequence[Row], ids: Sequence[Any]) -> None:
        """Take rows; each gets its id in front where it has none of its own.

        Raises TypeError or ValueError, and takes none, where the format cannot hold one of them.
        """

    def reorder(self, order: Sequence[int]) -> None:
        """Let the rows with these numbers come one after the other."""

    def write(self, file: DurableFile) -> None:
        """Write all rows; they stay."""

    def clear(self) -> None:
        """Forget all rows."""


class JsonLines:
    """A line of strict JSON for each row. NaN and infinities, which JSON has not, become null."""

    def __init__(self, compression: str = "none") -> None:
        self._compression = compression
        self.suffix = "jsonl" + {"none": "", "gzip": ".gz", "zstd": ".zst"}[compression]
        self._texts: list[str] = []
        self.rows = self.bytes = 0

    def add(self, rows: Sequence[Row], ids: Sequence[Any]) -> None:
        if not rows:
            return
        text = to_lines(rows, ids)
        self._texts.append(text)
        self.rows += len(rows)
        self.bytes += len(text) + _OBJECT

    def reorder(self, order: Sequence[int]) -> None:
        lines = "".join(self._texts).split("\n")  # a newline is escaped inside of a row
        self._texts = ["".join([f"{lines[number]}\n" for number in order])]

    def write(self, file: DurableFile) -> None:
        file.write(_compressed("".join(self._texts).encode(), self._compression))

    def clear(self) -> None:
        self._texts = []
        self.rows = self.bytes = 0


class _Rows:
    """Keeps rows as they are."""

    suffix = ""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self.rows = self.bytes = 0

    def add(self, rows: Sequence[Row], ids: Sequence[Any]) -> None:
        plain = [{name: _on_cpu(value) for name, value in row.items()} for row in with_ids(rows, ids)]
        self._rows += plain
        self.rows += len(plain)
        self.bytes += sum(_size(value) for row in plain for value in row.values())

    def reorder(self, order: Sequence[int]) -> None:
        self._rows = [self._rows[number] for number in order]

    def clear(self) -> None:
        self._rows = []
        self.rows = self.bytes = 0


class Parquet(_Rows):
    """A Parquet file; its columns are those of the first row."""

    suffix = "parquet"

    def __init__(self, compression: str = "none") -> None:
        super().__init__()
        self._compression = compression

    def write(self, file: DurableFile) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pylist([{name: _arrow(value) for name, value in row.items()} for row in self._rows])
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression=self._compression)
        file.write(memoryview(sink.getvalue()))


class SafeTensors(_Rows):
    """A tensor for each column; ids that are no numbers lie in the header, as JSON under `ids`."""

    suffix = "safetensors"

    def write(self, file: DurableFile) -> None:
        from safetensors.numpy import save

        columns = {name: [row[name] for row in self._rows] for name in self._rows[0]}
        metadata = None
        columns["id"] = [one.item() if hasattr(one, "item") else one for one in columns["id"]]
        if any(not isinstance(one, int) for one in columns["id"]):
            metadata = {"ids": json.dumps(columns.pop("id"))}
        file.write(save({name: _stacked(name, values) for name, values in columns.items()}, metadata))


class Npy(_Rows):
    """One array, of the one column beside the id."""

    suffix = "npy"

    def add(self, rows: Sequence[Row], ids: Sequence[Any]) -> None:
        for row in rows:
            if len(row) != 1 + ("id" in row):
                raise ValueError(f"npy holds one array beside the id, and a row has {', '.join(row)}")
        super().add(rows, ids)

    def write(self, file: DurableFile) -> None:
        import numpy as np

        (name,) = (name for name in self._rows[0] if name != "id")
        target = io.BytesIO()
        np.save(target, _stacked(name, [row[name] for row in self._rows]), allow_pickle=False)
        file.write(target.getvalue())


def buffer_for(format: str, compression: str) -> RowBuffer:
    """An empty buffer of a format."""
    match format:
        case "parquet":
            return Parquet(compression)
        case "safetensors":
            return SafeTensors()
        case "npy":
            return Npy()
        case _:
            return JsonLines(compression)


def check_format(format: str, compression: str) -> None:
    """Refuse now what could not be written later. Raises ConfigError."""
    needs = format == "parquet" or compression == "zstd"
    if needs and find_spec("pyarrow") is None:
        raise ConfigError(
            f"outputs: {format} with compression {compression} needs pyarrow: pip install keepstep[outputs]"
        )


def with_ids(rows: Sequence[Row], ids: Sequence[Any]) -> list[Row]:
    """The rows, with these ids in front where they have none of their own."""
    return [row if "id" in row else {"id": id, **row} for id, row in zip(ids, rows, strict=True)]


def to_lines(rows: Sequence[Row], ids: Sequence[Any]) -> str:
    """A line of strict JSON for each row. Raises TypeError for a value that JSON has no form for.

    One call for all rows, and ids that are put into the text, take a third of the time of a call for each row. A
    control character cannot stand in JSON, so it shows where rows end: between an end and a begin of an object. Rows
    that hold lists of objects have more of these, and are encoded one by one.
    """
    try:
        if all(rows) and not any("id" in row for row in rows):
            bodies = _encode_all(list(rows))[2:-2].split(_BETWEEN)
            heads = _encode_all(list(ids))[1:-1].split(_MARK)
            if len(bodies) == len(heads) == len(rows):
                text = "".join([f'{{"id": {head}, {body}}}\n' for head, body in zip(heads, bodies, strict=True)])
                return text.replace(_MARK, ", ")
        return "".join(_encode(row) + "\n" for row in with_ids(rows, ids))
    except ValueError:
        return "".join(_encode(_finite(row)) + "\n" for row in with_ids(rows, ids))


def _plain(value: Any) -> Any:
    """Arrays, tensors and numbers of NumPy as lists and numbers."""
    convert: Callable[[], Any] | None = getattr(value, "tolist", None)
    if convert is None:
        raise TypeError(f"a {type(value).__name__} has no form in JSON")
    return convert()


# All ASCII: readers that split lines also at the separators of Unicode then see whole ones.
_encode = json.JSONEncoder(allow_nan=False, default=_plain).encode
_MARK = "\x1f"
_BETWEEN = "}" + _MARK + "{"
_encode_all = json.JSONEncoder(allow_nan=False, default=_plain, separators=(_MARK, ": ")).encode


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return _finite(value.tolist()) if hasattr(value, "tolist") else value


def _compressed(data: bytes, compression: str) -> bytes | memoryview:
    if compression == "gzip":
        import gzip

        return gzip.compress(data, 6, mtime=0)
    if compression == "zstd":
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(data)
        return memoryview(sink.getvalue())
    return data


def _size(value: Any) -> int:
    size = getattr(value, "nbytes", None)
    if size is None:
        size = len(value) if isinstance(value, str | bytes) else 8 * len(value) if hasattr(value, "__len__") else 0
    return int(size) + _OBJECT


def _on_cpu(value: Any) -> Any:
    """A tensor as an array, or as a number where it is one; NumPy has no bfloat16. Other values stay."""
    if not hasattr(value, "detach"):
        return value
    value = value.detach().cpu()
    if value.ndim == 0:
        return value.item()
    return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()


def _arrow(value: Any) -> Any:
    return value.tolist() if getattr(value, "ndim", 0) > 1 else value


def _stacked(name: str, values: Sequence[Any]) -> Any:
    import numpy as np

    try:
        array = np.stack([np.asarray(value) for value in values])
    except ValueError as error:
        raise ValueError(f"column {name}: rows of one file must have arrays of one shape ({error})") from None
    if array.dtype.kind not in "biufc":
        raise ValueError(f"column {name}: {array.dtype} values are no array that this format holds")
    return array
