"""Where in an archive of `torch.save` the raw bytes of a tensor lie, told without unpickling anything general.

The archive is a zip file; only as much of its format is read here as `torch.save` uses. Anything else is not raw, and
`torch.load` is asked for it.
"""

import io
import math
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch

from keepstep.dcp.opcodes import MALFORMED, Sealed, refuse_unsafe

_REBUILDERS = {"_rebuild_tensor_v2", "_rebuild_tensor_v3"}
_LOCAL_SIZE = 30
_NAME_LENGTHS = struct.Struct("<26xHH")
_CENTRAL = struct.Struct("<4s6xH8xIIHHH8xI")
_END = struct.Struct("<4s6xHII2x")
_END64 = struct.Struct("<4s28xQQQ")
_END64_SIZE = 56
_LOCATOR64_SIZE = 20
_NONE32 = 0xFFFFFFFF
_TAIL = 4096
# The longest list of members that is read, in bytes: an archive of one tensor has a handful.
_MAX_DIRECTORY = 1024 * 1024
_MAX_COUNT = 1 << 63
# Offset and number of bytes to those bytes; fewer at the end.
ReadAt = Callable[[int, int], bytes]


@dataclass(frozen=True)
class RawTensor:
    """A row-major tensor whose bytes begin at `data` of its archive."""

    data: int
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Storage:
    name: str
    dtype: torch.dtype | None


@dataclass(frozen=True)
class _Rebuilt:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype | None


@dataclass(frozen=True)
class _Member:
    header: int
    size: int
    is_stored: bool


def find_raw(size: int, read: ReadAt) -> RawTensor | None:
    """The tensor in an archive if its bytes lie there as they are needed; None for anything else (a view of something
    larger, another byte order, a compressed member, no archive at all).

    Args:
        size: bytes of the archive.
        read: reads parts of it.
    """
    try:
        members = dict(_members(size, read))
        described = _describe(_content(members["data.pkl"], size, read))
        if described is None or ("byteorder" in members and _content(members["byteorder"], size, read) != b"little"):
            return None
        raw = members[f"data/{described.storage.name}"]
        dtype = described.dtype or described.storage.dtype
        if dtype is None or not raw.is_stored or raw.size != dtype.itemsize * math.prod(described.shape):
            return None
        begin = _begin(raw, size, read)
        return RawTensor(begin, dtype, described.shape) if begin + raw.size <= size else None
    except (KeyError, struct.error, UnicodeDecodeError):
        return None


def refuse_unsafe_archive(data: bytes) -> bytes:
    """Look through an archive before `torch.load` makes something of it. Returns the pickle in it.

    Raises:
        pickle.UnpicklingError: it is none that `torch.save` writes, a member of it is compressed or larger than the
            archive, or its pickle is unsafe (see `opcodes.refuse_unsafe`).
    """
    read: ReadAt = partial(_cut, data)
    try:
        members = list(_members(len(data), read))
        # Torch finds a member by its name in any case.
        (described,) = (member for name, member in members if name.lower() == "data.pkl")
        if (
            not data.startswith(b"PK\3\4")
            or not all(member.is_stored for _, member in members)
            or sum(member.size for _, member in members) > len(data)
        ):
            raise pickle.UnpicklingError("its members take more than they should")
        begin = _begin(described, len(data), read)
    except (struct.error, ValueError) as error:
        raise pickle.UnpicklingError("it is no archive of torch.save") from error
    pickled = data[begin : begin + described.size]
    refuse_unsafe(pickled, persistent_ids=True)
    return pickled


def _cut(data: bytes, offset: int, size: int) -> bytes:
    return data[offset : offset + size]


def _members(size: int, read: ReadAt) -> Iterator[tuple[str, _Member]]:
    """All members by name, without the folder that holds them. Raises struct.error where the format is another."""
    tail_at = max(0, size - _TAIL)
    tail = read(tail_at, size - tail_at)
    end = len(tail) - _END.size
    signature, count, length, begin = _END.unpack_from(tail, end)
    if signature != b"PK\5\6":
        raise struct.error("no end record where it should be")
    if _NONE32 in (length, begin) or count == 0xFFFF:
        signature, count, length, begin = _END64.unpack_from(tail, end - _LOCATOR64_SIZE - _END64_SIZE)
        if signature != b"PK\6\6":
            raise struct.error("no end record of a long archive where it should be")
    if begin + length > size or length > _MAX_DIRECTORY:
        raise struct.error("a list of members that is longer than it can be")
    directory = tail[begin - tail_at :] if begin >= tail_at else read(begin, length)
    at = 0
    for _ in range(count):
        fields = _CENTRAL.unpack_from(directory, at)
        signature, method, _, member_size, named, extra_length, comment, header = fields
        if signature != b"PK\1\2":
            raise struct.error("no member where one should be")
        at += _CENTRAL.size
        name = directory[at : at + named].decode()
        if _NONE32 in (member_size, header):
            extra = directory[at + named : at + named + extra_length]
            member_size, header = _long_fields(extra, member_size, header)
        at += named + extra_length + comment
        yield name.partition("/")[2], _Member(header, member_size, method == 0)


def _long_fields(extra: bytes, size: int, header: int) -> tuple[int, int]:
    """Size and offset of a member beyond 4 GiB: where a field is full, the next long one counts."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            values = iter(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            if size == _NONE32:
                size = next(values, _NONE32)
                next(values, None)  # the compressed size, which is full as well
            return size, next(values, header) if header == _NONE32 else header
        at += 4 + length
    raise struct.error("a long member without its long fields")


def _begin(member: _Member, size: int, read: ReadAt) -> int:
    name: int
    extra: int
    if member.header + _LOCAL_SIZE > size:
        raise struct.error("a member beyond the end")
    name, extra = _NAME_LENGTHS.unpack(read(member.header, _LOCAL_SIZE))
    return member.header + _LOCAL_SIZE + name + extra


def _content(member: _Member, size: int, read: ReadAt) -> bytes:
    if not member.is_stored or member.size > _TAIL:
        raise struct.error("compressed, or too long for what it should be")
    begin = _begin(member, size, read)
    if begin + member.size > size:
        raise struct.error("a member that ends beyond the end")
    return bytes(read(begin, member.size))


@lru_cache(maxsize=4096)
def _describe(data: bytes) -> "_Rebuilt | None":
    """What a pickle says of a row-major tensor; None of anything else."""
    try:
        refuse_unsafe(data, persistent_ids=True)
        rebuilt = _Unpickler(io.BytesIO(data)).load()
    except MALFORMED:
        return None
    return rebuilt if _is_raw(rebuilt) else None


def _is_raw(value: Any) -> bool:
    """Whether a description is that of a row-major tensor, and everything in it of the type that it should be."""
    if not isinstance(value, _Rebuilt) or not isinstance(value.storage, _Storage) or value.offset:
        return False
    numbers = (*value.shape, *value.strides)
    return (
        all(type(number) is int and 0 <= number < _MAX_COUNT for number in numbers)
        and len(value.shape) == len(value.strides)
        and _is_row_major(value.shape, value.strides)
    )


class _Unpickler(pickle.Unpickler):
    """Understands what `torch.save` writes of one tensor, and makes nothing of it but a description."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in _REBUILDERS:
            return _Rebuild
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        # Looked up as it is: asking torch for a name that it does not have imports parts of it.
        value = vars(torch).get(name) if module in ("torch", "torch.storage") else None
        if isinstance(value, torch.dtype):
            return value
        if name.endswith("Storage"):
            dtype = getattr(value, "_dtype", None)  # `dtype` itself warns
            return _StorageKind(dtype if isinstance(dtype, torch.dtype) else None)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        kind, storage, name, *_ = pid
        if kind != "storage" or not isinstance(storage, _StorageKind) or type(name) is not str:
            raise pickle.UnpicklingError("it holds something else than a storage")
        return _Storage(name, storage.dtype)


@dataclass(frozen=True)
class _StorageKind:
    dtype: torch.dtype | None


class _Rebuild(metaclass=Sealed):
    """Called as torch's own function, it makes the description."""

    def __new__(cls, storage: Any, offset: int, shape: Any, strides: Any, grad: bool, hooks: Any, *rest: Any) -> Any:
        if any(isinstance(one, dict) and one for one in rest):
            raise pickle.UnpicklingError("its elements are conjugated or negated when they are looked at")
        dtype = next((one for one in rest if isinstance(one, torch.dtype)), None)
        return _Rebuilt(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)), dtype)


def _is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length != 1 and stride != step:
            return False
        step *= length
    return True
