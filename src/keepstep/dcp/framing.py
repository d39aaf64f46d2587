"""Frames values as the archives that `torch.save` would make of them, with less around them.

An archive is a zip file of stored members: the pickle that tells what it is, a version, and the raw bytes of a tensor
(`torch.serialization`). Written here, the frame takes about 600 bytes and not 1,600, and nothing is copied or checked a
second time: members carry no CRC, as with `torch.serialization.set_crc32_options(False)`, since keepstep has digests of
its own. A frame depends on dtype and shape alone, so that equal tensors share one.
"""

import io
import math
import pickle
import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

# Bytes of a payload begin at a multiple of this after the archive's begin: no dtype has larger elements.
ELEMENT = 16
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END = struct.Struct("<IHHHHIIH")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<IIQI")
_DATE = 0x21  # 1980-01-01, the first that a zip file knows
_NONE32, _NONE16 = 0xFFFFFFFF, 0xFFFF


_VERSION = (b"archive/version", b"3\n")


@dataclass(frozen=True)
class Frame:
    """What stands before and after the payload: the raw bytes of a tensor, or a pickle with zeros behind it."""

    head: bytes
    tail: bytes


@lru_cache(maxsize=4096)
def tensor_frame(dtype: torch.dtype, shape: tuple[int, ...]) -> Frame:
    """The frame of a row-major tensor."""
    size = dtype.itemsize * math.prod(shape)
    return _frame([(b"archive/data.pkl", _description(dtype, shape)), _VERSION], b"archive/data/0", size)


@lru_cache(maxsize=4096)
def tree_frame(size: int) -> Frame:
    """The frame of a pickle in a slot of `size` bytes. An unpickler stops where the pickle does."""
    return _frame([_VERSION], b"archive/data.pkl", size)


def _frame(before: Sequence[tuple[bytes, bytes]], name: bytes, size: int) -> Frame:
    members: list[tuple[bytes, int, int]] = []
    head = bytearray()
    for other, content in before:
        members.append((other, len(content), len(head)))
        head += _local(other, len(content), 0) + content
    members.append((name, size, len(head)))
    bare = len(_local(name, size, 0))
    head += _local(name, size, -(len(head) + bare + 4) % ELEMENT + 4)
    return Frame(bytes(head), _directory(members, len(head) + size))


class _Bytes:
    """Stands for the archive's one storage."""

    def __init__(self, size: int) -> None:
        self.size = size


class _Tensor:
    """Pickles as the call that makes a tensor of a storage."""

    def __init__(self, dtype: torch.dtype, shape: Sequence[int], storage: _Bytes) -> None:
        self._dtype, self._shape, self._storage = dtype, tuple(shape), storage

    def __reduce__(self) -> tuple[Any, ...]:
        strides: list[int] = []
        step = 1
        for length in reversed(self._shape):
            strides.append(step)
            step *= max(1, length)
        layout = self._shape, tuple(reversed(strides))
        hooks: OrderedDict[str, Any] = OrderedDict()
        return torch._utils._rebuild_tensor_v3, (self._storage, 0, *layout, False, hooks, self._dtype)


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, _Bytes):
            return "storage", torch.UntypedStorage, "0", "cpu", value.size
        return None


def _description(dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    elements = math.prod(shape)
    stream = io.BytesIO()
    _Pickler(stream, protocol=2).dump(_Tensor(dtype, shape, _Bytes(elements * dtype.itemsize)))
    return stream.getvalue()


def _local(name: bytes, size: int, padding: int) -> bytes:
    extra = struct.pack("<HHQQ", 1, 16, size, size) if size >= _NONE32 else b""
    if padding:
        extra += struct.pack("<HH", 0x4246, padding - 4) + bytes(padding - 4)
    short = min(size, _NONE32)
    return _LOCAL.pack(0x04034B50, 45, 0, 0, 0, _DATE, 0, short, short, len(name), len(extra)) + name + extra


def _directory(members: Sequence[tuple[bytes, int, int]], begin: int) -> bytes:
    entries = bytearray()
    for name, size, offset in members:
        extra = struct.pack("<HHQQ", 1, 16, size, size) if size >= _NONE32 else b""
        short = min(size, _NONE32)
        entries += _CENTRAL.pack(
            0x02014B50, 45, 45, 0, 0, 0, _DATE, 0, short, short, len(name), len(extra), 0, 0, 0, 0, offset
        )
        entries += name + extra
    count, length = len(members), len(entries)
    if begin < _NONE32:
        return bytes(entries) + _END.pack(0x06054B50, 0, 0, count, count, length, begin, 0)
    end64 = _END64.pack(0x06064B50, 44, 45, 45, 0, 0, count, count, length, begin)
    locator = _LOCATOR64.pack(0x07064B50, 0, begin + length, 1)
    return bytes(entries) + end64 + locator + _END.pack(0x06054B50, 0, 0, count, count, length, _NONE32, 0)
