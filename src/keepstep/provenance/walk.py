"""Digests what an object holds: rows in memory, the bytes of files that it names, settings.

Folders, code, locks and random generators are passed over: a data set that lies elsewhere is the same data set.
"""

import io
import logging
import marshal
import mmap
import os
import random
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np
import torch
import xxhash

from keepstep.provenance.tokenizer import is_tokenizer, tokenizer_text
from keepstep.storage.content import FileDigests

_CHUNK = 4096
_ROWS = 10_000
_DEEPEST = 60
# Version 2 of the format knows no references and no interned strings: equal values make equal bytes.
_PLAIN = 2
_SETS = (b"<", b">")
_SCALARS = (type(None), bool, int, float, complex, str, bytes)
_BY_TEXT = (date, time, timedelta, tzinfo, Decimal, Fraction, UUID, range, slice)
_CODE = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    types.CodeType,
    property,
    staticmethod,
    classmethod,
    partial,
)
_PASSED_OVER = (torch.Generator, np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)
_LOCKS = ("_thread", "threading", "multiprocessing.synchronize")


class NotTellableError(ValueError):
    """Something in an object cannot be told from outside. The message says where and what."""


class Walk:
    """Digests values, one after the other, with xxh3-128.

    Args:
        files: digests of the files that are named.

    Attributes:
        saw_content: whether rows, arrays or files were among them.
        saw_folder: a folder that was passed over.
    """

    def __init__(self, files: FileDigests) -> None:
        self._files = files
        self._state = xxhash.xxh3_128()
        self._above: list[int] = []
        self.saw_content = False
        self.saw_folder = ""

    def digest(self) -> bytes:
        """16 bytes: of all that was added."""
        return self._state.digest()

    def add(self, value: Any, where: str) -> None:
        """Add a value.

        Args:
            value: anything.
            where: its place, for the error.

        Raises:
            NotTellableError: it holds an iterator, or an object of compiled code that is not known.
            OSError: a file that it names cannot be read.
        """
        if isinstance(value, _SCALARS) and type(value) in _SCALARS:
            self._scalar(value)
        elif id(value) in self._above:
            self._tag("again", self._above.index(id(value)))
        elif len(self._above) > _DEEPEST:
            raise NotTellableError(f"{where}: nested too deeply")
        else:
            self._above.append(id(value))
            try:
                self._compound(value, where)
            finally:
                self._above.pop()

    def add_files(self, paths: Sequence[str | PurePath]) -> None:
        """Add files by content, order, and name below the folder that they share."""
        texts = [os.path.abspath(path) for path in paths]
        base = os.path.commonpath([os.path.dirname(text) for text in texts]) if texts else ""
        self._tag("files", len(texts))
        for text in texts:
            self._tag(os.path.relpath(text, base), self._files.of(text))
        self.saw_content |= bool(texts)

    def _tag(self, kind: str, *facts: object) -> None:
        self._state.update(marshal.dumps((kind, *map(str, facts)), _PLAIN))

    def _scalar(self, value: Any) -> None:
        self._state.update(marshal.dumps(value, _PLAIN))

    def _compound(self, value: Any, where: str) -> None:
        match value:
            case list() | tuple() | deque():
                self._sequence(value, where)
            case Mapping():
                self._tag("mapping", len(value))
                for key, item in value.items():
                    self.add(key, f"{where} (key)")
                    self.add(item, f"{where}[{key!r}]")
            case set() | frozenset():
                self._tag("set", *sorted(self._digest_of(item, where) for item in value))
            case bytearray() | memoryview() | mmap.mmap():
                self._bytes("bytes", memoryview(value))
            case np.ndarray():
                self._array(value, where)
            case np.generic():
                self._bytes(f"number {value.dtype.str}", memoryview(value.tobytes()))
            case torch.Tensor():
                self._tensor(value, where)
            case PurePath():
                self._path(os.fspath(value))
            case Enum():
                self._tag("enum", value.name)
            # Subclasses of plain types, which marshal does not know.
            case str():
                self._scalar(str.__str__(value))
            case int():
                self._scalar(int.__int__(value))
            case float():
                self._scalar(float.__float__(value))
            case bytes():
                self._bytes("bytes", memoryview(value))
            case _ if isinstance(value, _BY_TEXT):
                self._tag("text", repr(value))
            case _ if isinstance(value, (*_CODE, *_PASSED_OVER)) or type(value).__module__ in _LOCKS:
                self._tag("code")
            case logging.Logger():
                self._tag("code")
            case io.IOBase():
                self._open_file(value, where)
            case _:
                self._object(value, where)

    def _sequence(self, values: Sequence[Any], where: str) -> None:
        self._tag("sequence", len(values))
        self.saw_content |= bool(values)
        values = list(values) if isinstance(values, deque) else values
        if _names_files(values):
            texts = [os.fspath(value) for value in values if isinstance(value, str | PurePath)]
            if len(texts) == len(values) and all(os.path.isfile(text) for text in texts):
                self.add_files(texts)
                return
        # A row of an image data set is (path, label). Labels are often names of folders, so names below the folder that
        # all files share count, and those above do not.
        named = sorted(_files_in(values)) if values and _file_in(values[0]) is not None else []
        base = os.path.commonpath([os.path.dirname(os.path.abspath(one)) for one in named]) if named else None
        for begin in range(0, len(values), _CHUNK):
            chunk = values[begin : begin + _CHUNK]
            if base is None and (plain := _plain(chunk)) is not None:
                self._state.update(plain)
                continue
            for number, value in enumerate(chunk, begin):
                self._item(value, f"{where}[{number}]", base)

    def _item(self, value: Any, where: str, base: str | None) -> None:
        """One item of a sequence. `base`: the folder below which its files lie; None where none are named."""
        if base is not None and isinstance(value, list | tuple):
            self._tag("sequence", len(value))
            for part in value:
                self._item(part, where, base)
        elif base is not None and isinstance(value, str | PurePath) and os.path.isfile(value):
            self._tag("file", os.path.relpath(os.path.abspath(value), base), self._files.of(os.fspath(value)))
        else:
            self.add(value, where)

    def _bytes(self, kind: str, data: memoryview) -> None:
        self._tag(kind, data.nbytes)
        self._state.update(data)
        self.saw_content |= data.nbytes > 64

    def _array(self, value: np.ndarray[Any, Any], where: str) -> None:
        self._tag("array", value.dtype.str if value.dtype.names is None else value.dtype.descr, value.shape)
        self.saw_content |= value.size > 0
        if value.dtype.hasobject:
            self._sequence(value.ravel().tolist(), where)
        elif isinstance(value, np.memmap) and isinstance(value.base, mmap.mmap) and value.filename is not None:
            # The whole of a mapped file: its digest may be remembered.
            self._tag("mapped", value.offset, self._files.of(value.filename))
        elif value.flags.c_contiguous:
            self._state.update(value.reshape(-1).view(np.uint8).data)
        else:
            for part in value:
                self._state.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)

    def _tensor(self, value: torch.Tensor, where: str) -> None:
        self._tag("tensor", value.dtype, tuple(value.shape))
        self.saw_content |= value.numel() > 0
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            raise NotTellableError(f"{where}: a tensor without plain memory ({value.layout}, {value.device})")
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        self._state.update(flat.numpy().data)

    def _path(self, text: str) -> None:
        """A path that an object names: what lies there counts, not where."""
        if os.path.isfile(text):
            self._tag("file", self._files.of(text))
            self.saw_content = True
        elif os.path.isdir(text):
            self.saw_folder = text
            self._tag("folder")
        else:
            self._tag("path", os.path.basename(text))

    def _open_file(self, value: io.IOBase, where: str) -> None:
        if isinstance(value, io.BytesIO):
            self._bytes("bytes", value.getbuffer())
            return
        name = getattr(value, "name", None)
        if not isinstance(name, str) or not os.path.isfile(name):
            raise NotTellableError(f"{where}: an open {type(value).__name__}")
        self._path(name)

    def _object(self, value: Any, where: str) -> None:
        for special, add in _SPECIAL:
            if special(value):
                add(self, value, where)
                return
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if hasattr(value, "__next__") or type(value).__module__.partition(".")[0] in ("datasets", "builtins"):
            raise NotTellableError(f"{where}: a {kind}")
        attributes = attributes_of(value)
        if attributes is None:
            raise NotTellableError(f"{where}: a {kind}")
        self._tag("object", len(attributes))
        for name, held in attributes.items():
            self.add_attribute(name, held, f"{where}.{name}")

    def add_attribute(self, name: str, value: Any, where: str) -> None:
        """Add what an object holds under a name: there a string may be a path."""
        self._tag("attribute", name)
        if isinstance(value, str) and _looks_like_a_path(value):
            self._path(value)
        else:
            self.add(value, where)

    def _digest_of(self, value: Any, where: str) -> str:
        inner = Walk(self._files)
        inner._above = self._above
        inner.add(value, where)
        self.saw_content |= inner.saw_content
        return inner.digest().hex()


def attributes_of(value: Any) -> dict[str, Any] | None:
    """What an object holds, by name in order; None when that cannot be told."""
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    held = getattr(value, "__dict__", None)
    if held is None and not slots:
        return None
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)} | dict(held or {})
    return dict(sorted(found.items()))


def _slots(kind: type) -> Sequence[str]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _plain(chunk: Sequence[Any]) -> bytes | None:
    """Plain values in one piece. Sets are excluded: their order is another in each process."""
    try:
        data = marshal.dumps(list(chunk), _PLAIN)
    except ValueError:
        return None
    return None if any(mark in data for mark in _SETS) else data


def _looks_like_a_path(text: str) -> bool:
    if not 1 < len(text) < 4096 or "\n" in text or "\0" in text or "://" in text:
        return False
    if os.path.isabs(text):
        return os.path.exists(text)
    return (os.sep in text or "." in text) and os.path.isfile(text)


def _names_files(values: Sequence[Any]) -> bool:
    return bool(values) and isinstance(values[0], str | PurePath) and _file_in(values[0]) is not None


def _files_in(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _files_in(value)
        elif isinstance(value, str | PurePath) and os.path.isfile(value):
            yield os.fspath(value)


def _file_in(value: Any) -> str | None:
    """A path of a file, in a value or in the parts of one: a row of an image data set is (path, label)."""
    if isinstance(value, PurePath):
        return os.fspath(value) if os.path.isfile(value) else None
    if isinstance(value, str):
        return value if _looks_like_a_path(value) and os.path.isfile(value) else None
    if isinstance(value, list | tuple):
        return next((found for part in value[:8] if (found := _file_in(part)) is not None), None)
    return None


def _add_arrow(walk: Walk, table: Any, where: str) -> None:
    """A pyarrow.Table, in pieces of so many rows whatever its own pieces are."""
    walk._tag("table", table.num_rows, *(f"{field.name}: {field.type}" for field in table.schema))
    walk.saw_content |= table.num_rows > 0
    for begin in range(0, table.num_rows, _ROWS):
        for batch in table.slice(begin, _ROWS).combine_chunks().to_batches():
            walk._state.update(memoryview(batch.replace_schema_metadata(None).serialize()))


def _add_hugging_face(walk: Walk, dataset: Any, where: str) -> None:
    """A datasets.Dataset: its rows as Arrow holds them, and the order that a shuffle or a choice has laid over them."""
    _add_arrow(walk, dataset.data.table, where)
    indices = dataset._indices
    walk._tag("in order" if indices is None else "by index")
    if indices is not None:
        _add_arrow(walk, indices.table, where)


def _add_frame(walk: Walk, frame: Any, where: str) -> None:
    """A pandas DataFrame or Series."""
    columns = frame.columns if hasattr(frame, "columns") else [frame.name]
    walk._tag("frame", len(frame), *map(repr, columns))
    walk._array(frame.index.to_numpy(), where)
    for number in range(len(columns)):
        column = frame.iloc[:, number] if hasattr(frame, "columns") else frame
        walk._array(column.to_numpy(), f"{where}[{columns[number]!r}]")


def _is_from(package: str, name: str) -> Callable[[Any], bool]:
    """Whether an object is of such a class, without importing its package."""

    def check(value: Any) -> bool:
        return any(k.__name__ == name and k.__module__.partition(".")[0] == package for k in type(value).__mro__)

    return check


def _add_tokenizer(walk: Walk, tokenizer: Any, where: str) -> None:
    walk._tag("tokenizer", tokenizer_text(tokenizer))


_SPECIAL: tuple[tuple[Callable[[Any], bool], Callable[[Walk, Any, str], None]], ...] = (
    (is_tokenizer, _add_tokenizer),
    (_is_from("datasets", "Dataset"), _add_hugging_face),
    (_is_from("pyarrow", "Table"), _add_arrow),
    (_is_from("pandas", "DataFrame"), _add_frame),
    (_is_from("pandas", "Series"), _add_frame),
    (_is_from("polars", "DataFrame"), lambda walk, frame, where: _add_arrow(walk, frame.to_arrow(), where)),
)
