"""`__<rank>.index`: the block digests of a rank's shard files, and which tensor lies where. Binary, no pickle.

Layout: 8 bytes magic, 4 bytes little-endian length of the header, the header (JSON), then the digests of all files.
"""

import json
import math
import operator
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from keepstep.plan import layout
from keepstep.storage.digest import BLOCK_SIZE, DIGEST_SIZE

_MAGIC = b"KSINDEX3"
_MAX_HEADER = 1 << 30
# The longest index file that is read, in bytes: a rank's digests of a TiB take 1 GiB.
MAX_INDEX = 1 << 31
_MAX_COUNT = (1 << 63) - 1
_MAX_DIMS = 1024
_SHOWN = 80
# Bytes of an element by torch's name of the dtype: here torch is not imported.
ELEMENT_SIZES = {
    name: size
    for size, names in {
        1: "bool int8 uint8 int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7 "
        "bits1x8 bits2x4 bits4x2 bits8 qint8 quint8 quint4x2 quint2x4 "
        "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2",
        2: "int16 uint16 float16 bfloat16 bits16",
        4: "int32 uint32 float32 complex32 qint32",
        8: "int64 uint64 float64 complex64",
        16: "complex128",
    }.items()
    for name in names.split()
}


class IndexFormatError(ValueError):
    """The bytes are not an index that this version reads."""


@dataclass(frozen=True)
class IndexItem:
    """Where one tensor shard or value lies in a file: offset and length in bytes, its frame included.

    The bytes of a tensor, row by row, begin at `data` (0 stands for where the item begins). `dtype` (torch's name),
    `shape` of the shard and `at`, its place in the whole tensor, are empty for a Python value. Two items with one place
    are two names of one thing.
    """

    key: str
    offset: int
    length: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    at: tuple[int, ...] = ()
    data: int = 0


@dataclass(frozen=True)
class IndexedFile:
    """One shard file: its items, and the joined digests of its blocks."""

    name: str
    size: int
    items: tuple[IndexItem, ...]
    digests: bytes

    @property
    def blocks(self) -> int:
        """The number of its blocks; the last may be short."""
        return -(-self.size // BLOCK_SIZE)

    def items_at(self, block: int) -> list[str]:
        """Keys of the items that touch a block."""
        begin, end = block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE
        return [item.key for item in self.items if item.offset < end and item.offset + item.length > begin]


def to_bytes(files: Sequence[IndexedFile]) -> bytes:
    """The content of an index file."""
    return header_of([(f.name, f.size, f.items) for f in files]) + b"".join(f.digests for f in files)


def header_of(files: Sequence[tuple[str, int, Sequence[IndexItem]]]) -> bytes:
    """All of an index file but the digests, which follow: name, size and items of each shard file.

    Raises:
        IndexFormatError: a dtype that no reader would know.
    """
    for dtype in {item.dtype for _, _, items in files for item in items}:
        _element_size(dtype)
    header = {
        "block_size": BLOCK_SIZE,
        "files": [
            {
                "name": name,
                "size": size,
                "items": [[i.key, i.offset, i.length, i.dtype, i.shape, i.at, i.data] for i in items],
            }
            for name, size, items in files
        ],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return _MAGIC + len(text).to_bytes(4, "little") + text


def from_bytes(data: bytes) -> list[IndexedFile]:
    """Read an index file and check it: no number in it reaches beyond its file. Raises IndexFormatError."""
    if data[:8] != _MAGIC:
        raise IndexFormatError("it does not begin like an index file")
    length = int.from_bytes(data[8:12], "little")
    if length > _MAX_HEADER or len(data) < 12 + length:
        raise IndexFormatError("its header is cut off")
    try:
        header = json.loads(data[12 : 12 + length])
        if header["block_size"] != BLOCK_SIZE:
            raise IndexFormatError(f"its block size is not {BLOCK_SIZE}")
        files, place = [], 12 + length
        for entry in header["files"]:
            name, size = entry["name"], entry["size"]
            if type(name) is not str or not layout.is_safe_file_name(name):
                raise IndexFormatError(f"file name {reprlib.repr(name)} is not allowed")
            _check_counts((size,))
            count = -(-size // BLOCK_SIZE) * DIGEST_SIZE
            if place + count > len(data):
                raise IndexFormatError(f"the digests of {name} are cut off")
            files.append(IndexedFile(name, size, _items(entry["items"], size), data[place : place + count]))
            place += count
    except IndexFormatError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise IndexFormatError(f"a field is missing or of the wrong type ({_short(error)})") from None
    if place != len(data):
        raise IndexFormatError(f"it is {len(data)} bytes long, not {place}")
    if len({file.name for file in files}) != len(files):
        raise IndexFormatError("it lists a file twice")
    return files


def _items(rows: Any, size: int) -> tuple[IndexItem, ...]:
    """The items of a file of `size` bytes. Column by column: a loop over all fields takes several times as long."""
    if not rows:
        return ()
    keys, offsets, lengths, dtypes, shapes, ats, datas = zip(*rows, strict=True)
    if set(map(type, keys)) != {str} or set(map(type, dtypes)) != {str}:
        raise IndexFormatError("a key or a dtype is no text")
    for numbers in (offsets, lengths, datas):
        _check_counts(numbers)
    shapes, ats = tuple(map(tuple, shapes)), tuple(map(tuple, ats))
    dims = tuple(map(len, shapes))
    if dims != tuple(map(len, ats)) or max(dims) > _MAX_DIMS:
        raise IndexFormatError("a shape and its place do not have the same number of dimensions")
    _check_counts((0, *chain.from_iterable(shapes), *chain.from_iterable(ats)))
    if 0 in datas:
        datas = tuple(data or offset for data, offset in zip(datas, offsets, strict=True))
    element = {dtype: _element_size(dtype) for dtype in set(dtypes)}
    taken = map(operator.mul, map(math.prod, shapes), map(element.__getitem__, dtypes))
    ends = tuple(map(operator.add, offsets, lengths))
    if (
        max(ends) > size
        or not all(map(operator.le, offsets, datas))
        or not all(map(operator.le, map(operator.add, datas, taken), ends))
    ):
        raise IndexFormatError("an item reaches beyond its place")
    return tuple(map(IndexItem, keys, offsets, lengths, dtypes, shapes, ats, datas))


def _check_counts(numbers: Sequence[Any]) -> None:
    # bool is an int, and a float may be equal to one: neither is what was written.
    if set(map(type, numbers)) != {int} or min(numbers) < 0 or max(numbers) > _MAX_COUNT:
        raise IndexFormatError("a number is not a count")


def _element_size(dtype: str) -> int:
    """Bytes of an element; 0 of no dtype, which is that of a Python value."""
    if dtype and dtype not in ELEMENT_SIZES:
        raise IndexFormatError(f"dtype {dtype[:_SHOWN]!r} is unknown")
    return ELEMENT_SIZES.get(dtype, 0)


def _short(error: Exception) -> str:
    return reprlib.repr(str(error))
