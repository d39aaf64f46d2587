"""How objects of known libraries are digested: Arrow tables, data sets of Hugging Face, frames, tokenizers."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from keepstep.provenance.arrow import ArrowTypeError, add_table
from keepstep.provenance.attributes import package_of
from keepstep.provenance.tokenizer import is_tokenizer, tokenizer_text

_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


class NotTellableError(ValueError):
    """Something in an object cannot be told from outside. The message says where and what."""


class Taker(Protocol):
    """What takes the content of an object: `keepstep.provenance.walk.Walk`."""

    saw_content: bool

    def tag(self, kind: str, *facts: object) -> None:
        """Take names and counts."""

    def update(self, data: Any) -> None:
        """Take bytes."""

    def add_array(self, value: np.ndarray[Any, Any], where: str) -> None:
        """Take an array."""

    def add_sequence(self, values: Sequence[Any], where: str) -> None:
        """Take values in their order."""

    def add_files(self, paths: Sequence[str]) -> None:
        """Take the content of files."""


Add = Callable[[Taker, Any, str], None]


def _add_arrow(walk: Taker, table: Any, where: str) -> None:
    """A pyarrow.Table, or what can be made one."""
    arrow = sys.modules["pyarrow"]
    if isinstance(table, arrow.RecordBatch):
        table = arrow.Table.from_batches([table])
    elif isinstance(table, arrow.Array | arrow.ChunkedArray):
        table = arrow.table({"": table})
    walk.saw_content |= table.num_rows > 0
    try:
        add_table(table, walk.tag, walk.update)
    except ArrowTypeError as error:
        raise NotTellableError(f"{where}: {error}") from error


def _add_hugging_face(walk: Taker, dataset: Any, where: str) -> None:
    """A datasets.Dataset: its rows as Arrow holds them, and the order that a shuffle or a choice has laid over them."""
    table = dataset.data.table
    for name in table.column_names:
        files = _files_of(table.column(name))
        if files:
            walk.add_files(files)
            table = table.drop_columns([name])
    _add_arrow(walk, table, where)
    indices = dataset._indices
    walk.tag("in order" if indices is None else "by index")
    if indices is not None:
        _add_arrow(walk, indices.table, where)


def _files_of(column: Any) -> list[str]:
    """The files of a column of images or sounds that lie in files; empty for any other column."""
    kind = column.type
    if getattr(kind, "num_fields", 0) != 2 or {kind.field(number).name for number in range(2)} != {"bytes", "path"}:
        return []
    field = sys.modules["pyarrow"].compute.struct_field
    paths = field(column, "path").to_pylist()
    is_by_path = field(column, "bytes").null_count == len(column)
    return paths if is_by_path and all(path and os.path.isfile(path) for path in paths) else []


def _add_frame(walk: Taker, frame: Any, where: str) -> None:
    """A pandas DataFrame, Series or Index."""
    if hasattr(frame, "columns"):
        columns = [(repr(name), frame.iloc[:, number]) for number, name in enumerate(frame.columns)]
    else:
        columns = [(repr(frame.name), frame)]
    walk.tag("frame", len(frame), *(name for name, _ in columns))
    if hasattr(frame, "index") and hasattr(frame, "iloc"):
        walk.add_array(frame.index.to_numpy(), where)
    for name, column in columns:
        walk.add_array(column.to_numpy(), f"{where}[{name}]")


def _add_tokenizer(walk: Taker, tokenizer: Any, where: str) -> None:
    walk.tag("tokenizer", tokenizer_text(tokenizer))


def _add_files(walk: Taker, dataset: Any, where: str) -> None:
    """A data set of `keepstep.data.files` inside of another."""
    walk.tag("data set over files", getattr(dataset, "data_settings", None))
    walk.add_files(dataset.data_files())


def _is_from(package: str, *names: str) -> Callable[[Any], bool]:
    """Whether an object is of such a class, without importing its package."""

    def check(value: Any) -> bool:
        return any(kind.__name__ in names and package_of(kind) == package for kind in type(value).__mro__)

    return check


SPECIAL: tuple[tuple[Callable[[Any], bool], Add], ...] = (
    (lambda value: isinstance(value, _VIEWS), lambda walk, view, where: walk.add_sequence(list(view), where)),
    (is_tokenizer, _add_tokenizer),
    (_is_from("keepstep", "FileDataset", "SavedDataset"), _add_files),
    (_is_from("datasets", "Dataset"), _add_hugging_face),
    (_is_from("pyarrow", "Table", "RecordBatch", "Array", "ChunkedArray"), _add_arrow),
    (_is_from("pandas", "DataFrame", "Series", "Index"), _add_frame),
    (_is_from("polars", "DataFrame"), lambda walk, frame, where: _add_arrow(walk, frame.to_arrow(), where)),
)
