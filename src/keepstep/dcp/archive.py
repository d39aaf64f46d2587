"""Where in an archive of `torch.save` the raw bytes of a tensor lie, told without unpickling anything general."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_REBUILDERS = {"_rebuild_tensor_v2", "_rebuild_tensor_v3"}
_LOCAL = struct.Struct("<26xHH")


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


def find_raw(archive: io.BufferedIOBase | io.RawIOBase) -> RawTensor | None:
    """The tensor in an archive if its bytes lie there as they are needed; None for anything else (a view of something
    larger, another byte order, a compressed member)."""
    try:
        with zipfile.ZipFile(archive) as members:
            names = {info.filename.partition("/")[2]: info for info in members.infolist()}
            if "byteorder" in names and members.read(names["byteorder"]) != b"little":
                return None
            rebuilt = _Unpickler(io.BytesIO(members.read(names["data.pkl"]))).load()
            if not isinstance(rebuilt, _Rebuilt):
                return None
            dtype = rebuilt.dtype or rebuilt.storage.dtype
            raw = names[f"data/{rebuilt.storage.name}"]
    except (zipfile.BadZipFile, KeyError, pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError):
        return None
    if dtype is None or raw.compress_type != zipfile.ZIP_STORED or rebuilt.offset:
        return None
    if not _is_row_major(rebuilt.shape, rebuilt.strides) or raw.file_size != _size(dtype, rebuilt.shape):
        return None
    archive.seek(raw.header_offset)
    name, extra = _LOCAL.unpack(archive.read(_LOCAL.size) or b"")
    return RawTensor(raw.header_offset + _LOCAL.size + name + extra, dtype, rebuilt.shape)


class _Unpickler(pickle.Unpickler):
    """Understands what `torch.save` writes of one tensor, and makes nothing of it but a description."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in _REBUILDERS:
            return _rebuild
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        value = getattr(torch, name, None) if module in ("torch", "torch.storage") else None
        if isinstance(value, torch.dtype):
            return value
        if name == "UntypedStorage" or name.endswith("Storage"):
            return _StorageKind(getattr(value, "dtype", None))
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        kind, storage, name, *_ = pid
        if kind != "storage" or not isinstance(storage, _StorageKind):
            raise pickle.UnpicklingError("it holds something else than a storage")
        return _Storage(str(name), storage.dtype)


@dataclass(frozen=True)
class _StorageKind:
    dtype: torch.dtype | None


def _rebuild(storage: Any, offset: int, shape: Any, strides: Any, grad: bool, hooks: Any, *rest: Any) -> _Rebuilt:
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


def _size(dtype: torch.dtype, shape: Sequence[int]) -> int:
    size = dtype.itemsize
    for length in shape:
        size *= length
    return size
