"""Digests what an object holds: rows in memory, the bytes of files that it names, settings.

Folders, code, locks and random generators are passed over: a data set that lies elsewhere is the same data set.
"""

import array
import io
import marshal
import mmap
import operator
import os
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from itertools import chain
from pathlib import PurePath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import numpy as np
import torch
import xxhash

from keepstep.provenance.attributes import attributes_of, package_of, says_nothing
from keepstep.provenance.paths import common_folder, files_in, is_path, names_files, resolve
from keepstep.provenance.special import SPECIAL, NotTellableError
from keepstep.storage.content import FileDigests

_CHUNK = 4096
_DEEPEST = 60
_PLAIN_DEPTH = 8
# Version 2 of the format knows no references and no interned strings: equal values make equal bytes.
_MARSHAL = 2
_SCALARS = frozenset({type(None), bool, int, float, complex, str, bytes})
_NESTED = frozenset({list, tuple, dict})
# Other mappings may make what they hold when they are asked for it.
_MAPPINGS = (dict, OrderedDict, defaultdict, Counter, MappingProxyType)
_BY_TEXT = (
    *(date, time, timedelta, tzinfo, Decimal, Fraction, UUID, range, slice),
    *(torch.dtype, torch.device, np.dtype, operator.itemgetter, operator.attrgetter),
)
_MEMO_LENGTH, _MEMO_ENTRIES = 64, 10_000


class Walk:
    """Digests values, one after the other, with xxh3-128.

    Args:
        files: digests of the files that are named.
        roots: folders that names of files may be relative to.
        memo: digests of what several objects share, by identity. The objects are kept, so that none takes the place.

    Attributes:
        saw_content: whether rows, arrays or files were among them.
        saw_folder: a folder that was passed over.
    """

    def __init__(
        self, files: FileDigests, roots: Sequence[str] = (), memo: dict[int, tuple[Any, bytes]] | None = None
    ) -> None:
        self._files, self._roots = files, tuple(roots)
        self._memo: dict[int, tuple[Any, bytes]] = {} if memo is None else memo
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
        if type(value) in _SCALARS:
            self._state.update(marshal.dumps(value, _MARSHAL))
        elif says_nothing(value):
            self.tag("code")
        elif id(value) in self._above:
            self.tag("again", self._above.index(id(value)))
        elif len(self._above) > _DEEPEST:
            raise NotTellableError(f"{where}: nested too deeply")
        elif (known := self._memo.get(id(value))) is not None:
            self._state.update(known[1])
        else:
            self._shared(value, where)

    def add_attribute(self, name: str, value: Any, where: str) -> None:
        """Add what is held under a name: there a text may be a path."""
        self.tag("attribute", name)
        if isinstance(value, str) and is_path(value):
            self._path(value)
        else:
            self.add(value, where)

    def add_object(self, value: Any, attributes: Mapping[str, Any], where: str) -> None:
        """Add all that an object holds by name."""
        self.tag("object", len(attributes))
        before, self._roots = self._roots, (*self._roots, *folders_in(attributes.values()))
        for name, held in attributes.items():
            self.add_attribute(name, held, f"{where}.{name}")
        self._roots = before

    def add_files(self, paths: Sequence[str]) -> None:
        """Add files by content, order, and name below the folder that they share."""
        files = [os.path.abspath(path) for path in paths]
        base = common_folder(files) if files else ""
        self.tag("files", len(files))
        for file in files:
            self._file(file, base)

    def _shared(self, value: Any, where: str) -> None:
        """A value by a digest of its own where others may hold it too, so that it is walked once."""
        is_large = isinstance(value, list | tuple | dict) and len(value) >= _MEMO_LENGTH
        if not (is_large or hasattr(value, "__dict__")) or len(self._memo) >= _MEMO_ENTRIES:
            self._above.append(id(value))
            try:
                self._compound(value, where)
            finally:
                self._above.pop()
            return
        inner = Walk(self._files, self._roots, self._memo)
        inner._above = [*self._above, id(value)]
        inner._compound(value, where)
        self._take(inner)
        self._memo[id(value)] = value, inner.digest()
        self._state.update(inner.digest())

    def _take(self, inner: "Walk") -> None:
        self.saw_content |= inner.saw_content
        self.saw_folder = self.saw_folder or inner.saw_folder

    def update(self, data: Any) -> None:
        """Take bytes."""
        self._state.update(data)

    def tag(self, kind: str, *facts: object) -> None:
        """Take names and counts."""
        self._state.update(marshal.dumps((kind, *map(str, facts)), _MARSHAL))

    def _compound(self, value: Any, where: str) -> None:
        kept = attributes_of(value) if type(value).__dictoffset__ and isinstance(value, _HELD_TWICE) else None
        if kept:
            # A subclass of a container: what it contains, and what it holds besides.
            self.add_object(value, kept, where)
        match value:
            case list() | tuple() | deque():
                self.add_sequence(value, where)
            case Mapping() if isinstance(value, _MAPPINGS):
                self.tag("mapping", len(value))
                for key, item in value.items():
                    self.add(key, f"{where} (key)")
                    self.add_attribute("", item, f"{where}[{key!r}]")
            case set() | frozenset():
                self.tag("set", *sorted(self._digest_of(item, where) for item in value))
            case bytearray() | memoryview() | mmap.mmap():
                self._bytes("bytes", memoryview(value))
            case array.array():
                self._bytes(f"array {value.typecode}", memoryview(value))
            case np.ndarray():
                self.add_array(value, where)
            case np.generic():
                self._bytes(f"number {value.dtype!r}", memoryview(value.tobytes()))
            case torch.Tensor():
                self._tensor(value, where)
            case PurePath():
                self._path(os.fspath(value))
            case Enum():
                self.tag("enum", value.name)
            # Subclasses of plain types, which marshal does not know.
            case str():
                self.add(str.__str__(value), where)
            case int():
                self.add(int.__int__(value), where)
            case float():
                self.add(float.__float__(value), where)
            case bytes():
                self._bytes("bytes", memoryview(value))
            case partial():
                self.add([list(value.args), value.keywords], where)
            case re.Pattern():
                self.add([value.pattern, value.flags], where)
            case _ if isinstance(value, _BY_TEXT):
                self.tag("text", repr(value))
            case io.IOBase():
                self._open_file(value, where)
            case _:
                self._object(value, where)

    def add_sequence(self, values: Sequence[Any], where: str) -> None:
        """Take values in their order."""
        self.tag("sequence", len(values))
        self.saw_content |= bool(values)
        values = list(values) if isinstance(values, deque) else values
        base: str | None = None
        if is_named := names_files(values, self._roots):
            named = sorted(set(files_in(values, self._roots)))
            base = common_folder(named) if named else os.sep
        for begin in range(0, len(values), _CHUNK):
            chunk = values[begin : begin + _CHUNK]
            if not is_named and _is_plain(chunk):
                self._state.update(marshal.dumps(list(chunk), _MARSHAL))
                continue
            for number, value in enumerate(chunk, begin):
                self._item(value, f"{where}[{number}]", base)

    def _item(self, value: Any, where: str, base: str | None) -> None:
        """One item of a sequence. `base`: the folder below which its files lie; None where none are named."""
        if base is None:
            self.add(value, where)
        elif isinstance(value, list | tuple | dict):
            self.tag("row", len(value), *(value if isinstance(value, dict) else ()))
            for part in value.values() if isinstance(value, dict) else value:
                self._item(part, where, base)
        elif (file := resolve(value, self._roots)) is not None:
            self._file(file, base)
        elif isinstance(value, str) and os.path.isabs(value):
            self._path(value)
        else:
            self.add(value, where)

    def _file(self, file: str, base: str) -> None:
        self.tag("file", os.path.relpath(file, base), self._files.of(file))
        self.saw_content = True

    def _bytes(self, kind: str, data: memoryview) -> None:
        self.tag(kind, data.nbytes)
        self._state.update(data if data.c_contiguous else data.tobytes())
        self.saw_content |= data.nbytes > 64

    def add_array(self, value: np.ndarray[Any, Any], where: str) -> None:
        """Take an array by dtype, shape and content."""
        if isinstance(value, np.ma.MaskedArray):
            self.tag("masked")
            self.add_array(np.ma.getmaskarray(value), where)
            value = np.ma.getdata(value)
        self.tag("array", repr(value.dtype), value.shape)
        self.saw_content |= value.size > 0
        if isinstance(value, np.memmap) and isinstance(value.base, mmap.mmap) and value.filename is not None:
            # The whole of a mapped file: its digest may be remembered.
            self.tag("mapped", value.offset, self._files.of(value.filename))
            return
        plain = value.view(np.ndarray)
        if plain.dtype.hasobject:
            self.add_sequence(plain.ravel().tolist(), where)
        elif plain.flags.c_contiguous:
            self._state.update(plain.reshape(-1).view(np.uint8).data)
        else:
            for part in plain:
                self._state.update(np.ascontiguousarray(part).tobytes())

    def _tensor(self, value: torch.Tensor, where: str) -> None:
        self.tag("tensor", value.dtype, tuple(value.shape))
        self.saw_content |= value.numel() > 0
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            raise NotTellableError(f"{where}: a tensor without plain memory ({value.layout}, {value.device})")
        plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        self._state.update(plain.reshape(-1).view(torch.uint8).numpy().data)

    def _path(self, text: str) -> None:
        """A path that an object names: what lies there counts, not where, nor whether a folder is there yet."""
        if os.path.isfile(text):
            self.tag("file", self._files.of(text))
            self.saw_content = True
            return
        self.tag("place")
        if os.path.isdir(text):
            self.saw_folder = text

    def _open_file(self, value: Any, where: str) -> None:
        if isinstance(value, io.BytesIO | io.StringIO):
            content = value.getvalue()
            self.add(content, where)
            return
        name, mode = getattr(value, "name", None), getattr(value, "mode", "r")
        if not isinstance(mode, str) or not mode.startswith("r") or "+" in mode or value.closed:
            self.tag("code")  # it is written to, or not used any more
        elif isinstance(name, str) and os.path.isfile(name):
            self._path(name)
        else:
            raise NotTellableError(f"{where}: an open {type(value).__name__}")

    def _object(self, value: Any, where: str) -> None:
        for special, add in SPECIAL:
            if special(value):
                add(self, value, where)
                return
        declared = declaration(value, "fingerprint") if _is_data_set(value) else None
        if isinstance(declared, str) and declared:
            self.tag("declared", declared)
            self.saw_content = True
            return
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if hasattr(value, "__next__") or package_of(type(value)) in ("datasets", "builtins", "pyarrow"):
            raise NotTellableError(f"{where}: a {kind}")
        attributes = attributes_of(value)
        if attributes is None:
            raise NotTellableError(f"{where}: a {kind}")
        self.add_object(value, attributes, where)

    def _digest_of(self, value: Any, where: str) -> str:
        inner = Walk(self._files, self._roots, self._memo)
        inner._above = self._above
        inner.add(value, where)
        self._take(inner)
        return inner.digest().hex()


_HELD_TWICE = (list, tuple, dict, deque, set, frozenset, np.ndarray, str, bytes)


def declaration(value: Any, name: str) -> Any:
    """What an object says about itself under a name: an attribute, or what a method without arguments returns."""
    found = getattr(value, name, None)
    return found() if callable(found) else found


def folders_in(values: Iterable[Any]) -> list[str]:
    """Those of the values that are paths of folders."""
    texts = [os.fspath(value) for value in values if isinstance(value, str | PurePath)]
    return [text for text in texts if 1 < len(text) < 4096 and "\0" not in text and os.path.isdir(text)]


def _is_data_set(value: Any) -> bool:
    return hasattr(value, "__getitem__") or hasattr(value, "__iter__")


def _is_plain(values: Sequence[Any], depth: int = 0) -> bool:
    """Whether marshal may have these values: it would take sets in any order, and arrays of objects by address."""
    kinds = set(map(type, values)) - _SCALARS
    if not kinds:
        return True
    if not kinds <= _NESTED or depth == _PLAIN_DEPTH:
        return False
    nested = (
        chain(value, value.values()) if type(value) is dict else value for value in values if type(value) in _NESTED
    )
    return _is_plain(list(chain.from_iterable(nested)), depth + 1)
