"""Reads `.metadata`, which is a pickle: only DCP's own plain classes get through, all else is refused by name."""

import io
import operator
import pickle
import reprlib
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from keepstep.dcp.entries import Stored
from keepstep.dcp.opcodes import MALFORMED, Sealed, refuse_unsafe
from keepstep.errors import CouldNotLookError, DamagedCheckpointError, UnsupportedStateError
from keepstep.plan import layout
from keepstep.storage.plain import NotPlainError, read_plain

# The longest that is read, in bytes. That of 300,000 shards takes 100 MiB.
MAX_METADATA = 1 << 31
_MAX_COUNT = (1 << 63) - 1


class _Metadata(Metadata, metaclass=Sealed):
    pass


class _MetadataIndex(MetadataIndex, metaclass=Sealed):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, MetadataIndex) and (self.fqn, self.offset) == (other.fqn, other.offset)

    def __hash__(self) -> int:
        # Of anything else a hash may not come to an end: it could hold this very index.
        if type(self.fqn) is not str or type(self.offset) not in (torch.Size, type(None)):
            raise TypeError("an index that names no place")
        return hash((self.fqn, self.offset))


class _TensorStorageMetadata(TensorStorageMetadata, metaclass=Sealed):
    pass


class _BytesStorageMetadata(BytesStorageMetadata, metaclass=Sealed):
    pass


class _ChunkStorageMetadata(ChunkStorageMetadata, metaclass=Sealed):
    pass


class _TensorProperties(TensorProperties, metaclass=Sealed):
    pass


class _StorageMeta(StorageMeta, metaclass=Sealed):
    pass


class _StorageInfo(filesystem._StorageInfo, metaclass=Sealed):
    pass


class _MemoryFormat(metaclass=Sealed):
    """Stands for a member of torch's enumeration, whose attributes a pickle could set."""

    __slots__ = ("_member",)

    def __init__(self, value: int) -> None:
        self._member = _MEM_FORMAT_ENCODING(value)

    def __eq__(self, other: object) -> bool:
        return other is self._member

    __hash__ = None  # type: ignore[assignment]


class _Layout(metaclass=Sealed):
    def __new__(cls, name: str) -> Any:
        return _LAYOUTS[name]


class _Path(metaclass=Sealed):
    """Where the folder was: nobody asks."""

    def __new__(cls, *parts: str) -> Any:
        return None


class _Dict(dict[Any, Any], metaclass=Sealed):
    pass


_LAYOUTS = {str(one): one for one in vars(torch).values() if isinstance(one, torch.layout)}
_DCP_METADATA = "torch.distributed.checkpoint.metadata"
# None of it is what the pickle asks for: a class would be the whole process's, and the pickle could set its attributes.
_ALLOWED: dict[tuple[str, str], Any] = {
    (_DCP_METADATA, "Metadata"): _Metadata,
    (_DCP_METADATA, "MetadataIndex"): _MetadataIndex,
    (_DCP_METADATA, "TensorStorageMetadata"): _TensorStorageMetadata,
    (_DCP_METADATA, "BytesStorageMetadata"): _BytesStorageMetadata,
    (_DCP_METADATA, "ChunkStorageMetadata"): _ChunkStorageMetadata,
    (_DCP_METADATA, "TensorProperties"): _TensorProperties,
    (_DCP_METADATA, "StorageMeta"): _StorageMeta,
    (_DCP_METADATA, "_MEM_FORMAT_ENCODING"): _MemoryFormat,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _StorageInfo,
    ("torch.serialization", "_get_layout"): _Layout,
    ("torch", "Size"): torch.Size,
    ("collections", "OrderedDict"): _Dict,
    ("pathlib", "PosixPath"): _Path,
    ("pathlib", "PurePosixPath"): _Path,
    ("pathlib", "WindowsPath"): _Path,
}

_ALONE: frozenset[str] = frozenset()


class _AllowListUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        # Looked up as it is: asking torch for a name that it does not have imports parts of it.
        if module == "torch" and isinstance(vars(torch).get(name), torch.dtype):
            return vars(torch)[name]
        raise UnsupportedStateError(
            f"{layout.METADATA} asks for {module}.{name}, which no checkpoint needs; it is not loaded"
        )


def read_metadata(folder: Path) -> Metadata:
    """Read and check the metadata of a DCP folder.

    Raises:
        DamagedCheckpointError: it is not readable as DCP metadata, or points outside the folder.
        UnsupportedStateError: it asks for a class that is not on the list.
        CouldNotLookError: the file cannot be read.
    """
    path = folder / layout.METADATA
    try:
        data = read_plain(path, MAX_METADATA)
    except NotPlainError as error:
        raise DamagedCheckpointError(f"{path}: {error}") from error
    except FileNotFoundError as error:
        raise DamagedCheckpointError(f"{path} is missing") from error
    except OSError as error:
        raise CouldNotLookError(f"cannot read {path}: {error}") from error
    return parse_metadata(data, folder)


def parse_metadata(data: bytes, place: object) -> Metadata:
    """The same for the bytes of `.metadata`; `str` of `place` says where they are from.

    All that is used of it later has the type that it should.
    """
    path = f"{place}/{layout.METADATA}"
    try:
        refuse_unsafe(data)
        metadata = _AllowListUnpickler(io.BytesIO(data)).load()
    except UnsupportedStateError:
        raise
    # A damaged pickle may raise any of these; none of them has side effects, since only plain classes get through.
    except MALFORMED as error:
        raise DamagedCheckpointError(f"{path} is not readable: {type(error).__name__}: {_short(error)}") from None
    if not isinstance(metadata, Metadata):
        raise DamagedCheckpointError(f"{path} holds no DCP metadata")
    try:
        _check_keys(metadata.state_dict_metadata)
        _check_places(metadata.storage_data, place)
    except DamagedCheckpointError:
        raise
    except MALFORMED as error:
        raise DamagedCheckpointError(f"{path} is not readable: {type(error).__name__}: {_short(error)}") from None
    return metadata


def _check_keys(keys: Any) -> None:
    if type(keys) is not dict:
        raise TypeError("its keys are no dict")
    for key, what in keys.items():
        if type(key) is not str:
            raise TypeError("a key is no text")
        if isinstance(what, TensorStorageMetadata):
            _check_shape(what.size)
            if not isinstance(what.properties, TensorProperties) or not isinstance(what.properties.dtype, torch.dtype):
                raise TypeError(f"{_name(key)} has no dtype")
            if type(what.chunks) is not list:
                raise TypeError(f"{_name(key)} has no list of chunks")
            for chunk in what.chunks:
                if not isinstance(chunk, ChunkStorageMetadata):
                    raise TypeError(f"{_name(key)} has something else for a chunk")
                _check_inside(key, chunk.offsets, chunk.sizes, what.size)
        elif not isinstance(what, BytesStorageMetadata):
            raise TypeError(f"{_name(key)} is neither a tensor nor a value")


def _check_places(places: Any, folder: object) -> None:
    if type(places) is not dict:
        raise TypeError("its places are no dict")
    known: set[str] = set()
    for index, place in places.items():
        if not isinstance(index, MetadataIndex) or not isinstance(place, filesystem._StorageInfo):
            raise TypeError("a place is something else")
        name = place.relative_path
        if type(index.fqn) is not str or type(name) is not str:
            raise TypeError("a name is no text")
        if index.offset is not None:
            _check_shape(index.offset)
        begin, length = place.offset, place.length
        if type(begin) is not int or type(length) is not int or begin < 0 or not 0 <= length <= _MAX_COUNT - begin:
            raise TypeError(f"{_name(index.fqn)} has a place that is none")
        descriptors = place.transform_descriptors
        if descriptors is not None and not (
            isinstance(descriptors, list | tuple) and all(type(one) is str for one in descriptors)
        ):
            raise TypeError(f"{_name(index.fqn)} was transformed by something else than names")
        if name in known:
            continue
        if not layout.is_safe_file_name(name):
            raise DamagedCheckpointError(f"{folder}: {_name(index.fqn)} lies in {_name(name)}, outside the folder")
        known.add(name)


def _check_shape(shape: Any) -> None:
    # A torch.Size holds nothing but 64-bit integers.
    if type(shape) is not torch.Size or (shape and min(shape) < 0):
        raise TypeError("a shape is none")


def _check_inside(key: str, offsets: Any, sizes: Any, whole: torch.Size) -> None:
    if type(offsets) is not torch.Size or type(sizes) is not torch.Size:
        raise TypeError("a shape is none")
    if not len(offsets) == len(sizes) == len(whole):
        raise ValueError(f"{_name(key)} has a chunk of other dimensions")
    if whole and (
        min(offsets) < 0 or min(sizes) < 0 or any(map(operator.gt, map(operator.add, offsets, sizes), whole))
    ):
        raise ValueError(f"{_name(key)} has a chunk outside of it")


def _name(text: str) -> str:
    return reprlib.repr(text)


def _short(error: BaseException) -> str:
    # Of a hostile value even the message may be endless.
    return reprlib.repr(str(error)) if isinstance(error, MALFORMED) and not isinstance(error, MemoryError) else ""


def stored_keys(metadata: Metadata) -> dict[str, Stored]:
    """All keys of a checkpoint with shape and dtype."""
    keys_at: dict[tuple[str, int], list[str]] = {}
    place_of: dict[str, tuple[str, int]] = {}
    for index, place in metadata.storage_data.items():
        keys_at.setdefault((place.relative_path, place.offset), []).append(index.fqn)
        place_of.setdefault(index.fqn, (place.relative_path, place.offset))
    # One set for all of its names: of a place that has a hundred thousand, each would be given as many.
    names_at = {place: frozenset(names) for place, names in keys_at.items() if len(names) > 1}
    stored = {}
    for key, what in metadata.state_dict_metadata.items():
        several = names_at.get(place_of[key], _ALONE) if key in place_of else _ALONE
        if isinstance(what, TensorStorageMetadata):
            stored[key] = Stored(what.size, what.properties.dtype, several)
        else:
            stored[key] = Stored(names=several)
    return stored
