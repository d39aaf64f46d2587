"""DCP's `.metadata`, written in parts: each rank makes its own, the main process joins them.

`.metadata` is one pickle. Pickling it as a whole takes seconds for hundreds of ranks, and only the places in files
differ from rank to rank; so a rank writes the pickle opcodes of its own places, which stand in the whole as they are.
They need nothing before them but the preamble, which gives classes and field names their numbers in the memo.
"""

import io
import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from keepstep.dcp.items import Item
from keepstep.dcp.shard import Shard

_PREAMBLE: tuple[Any, ...] = (
    MetadataIndex,
    _StorageInfo,
    torch.Size,
    ChunkStorageMetadata,
    TensorStorageMetadata,
    BytesStorageMetadata,
    "fqn",
    "offset",
    "relative_path",
    "length",
    "offsets",
    "sizes",
    "properties",
    "size",
    "chunks",
)


def _get(number: int) -> bytes:
    return pickle.BINGET + bytes([number])


_GET = {value: _get(number) for number, value in enumerate(_PREAMBLE)}
_NEW, _BUILD = pickle.EMPTY_TUPLE + pickle.NEWOBJ + pickle.EMPTY_DICT + pickle.MARK, pickle.SETITEMS + pickle.BUILD
_INDEX = _GET[MetadataIndex] + _NEW + _GET["fqn"]
_STORAGE = _GET[_StorageInfo] + _NEW + _GET["relative_path"]
_CHUNK = _GET[ChunkStorageMetadata] + _NEW + _GET["offsets"]
_TENSOR = _GET[TensorStorageMetadata] + _NEW + _GET["properties"]
_BYTES = _GET[BytesStorageMetadata] + pickle.EMPTY_TUPLE + pickle.NEWOBJ


@dataclass(frozen=True)
class Fragment:
    """One rank's part of `.metadata`.

    Attributes:
        tensors: key to the opcodes of its properties and its size, the same on all ranks, and of this rank's shards.
        trees: keys of trees.
        places: opcodes of (index, place) pairs.
    """

    tensors: dict[str, tuple[bytes, bytes, bytes]]
    trees: list[str]
    places: bytes


def fragment_of(shard: Shard) -> Fragment:
    """This rank's part."""
    tensors: dict[str, tuple[bytes, bytes, bytes]] = {}
    trees: list[str] = []
    places: list[bytes] = []
    path = _text(shard.name)
    for placed in shard.placed:
        item = placed.item
        place = b"".join(
            (_STORAGE, path, _GET["offset"], _int(placed.offset), _GET["length"], _int(placed.length), _BUILD)
        )
        offset = _GET["offset"] + _size(item.at) if item.dtype is not None else b""
        for key in shard.names(placed):
            places.append(b"".join((_INDEX, _text(key), offset, _BUILD, place)))
            if item.dtype is None:
                trees.append(key)
            else:
                chunk = _CHUNK + _size(item.at) + _GET["sizes"] + _size(item.shape) + _BUILD
                before = tensors.get(key)
                tensors[key] = (*_facts(item), chunk) if before is None else (*before[:2], before[2] + chunk)
    return Fragment(tensors, trees, b"".join(places))


def join(fragments: Sequence[Fragment]) -> bytes:
    """The whole of `.metadata`. No path of this machine goes into it."""
    heads: dict[str, tuple[bytes, bytes]] = {}
    chunks: dict[str, list[bytes]] = {}
    trees: dict[str, None] = {}
    for fragment in fragments:
        for key, (properties, size, own) in fragment.tensors.items():
            heads.setdefault(key, (properties, size))
            chunks.setdefault(key, []).append(own)
        trees.update(dict.fromkeys(fragment.trees))
    memo = {properties: number for number, properties in enumerate(dict.fromkeys(p for p, _ in heads.values()))}
    out = [pickle.PROTO, b"\x04"]
    for value in _PREAMBLE:
        out += [_text(value) if isinstance(value, str) else _embedded(value), pickle.MEMOIZE, pickle.POP]
    for properties in memo:
        out += [properties, pickle.MEMOIZE, pickle.POP]
    out += [_embedded(Metadata), pickle.EMPTY_TUPLE, pickle.NEWOBJ, pickle.EMPTY_DICT, pickle.MARK]
    out += [_text("state_dict_metadata"), pickle.EMPTY_DICT, pickle.MARK]
    for key, parts in chunks.items():
        properties, size = heads[key]
        out += [_text(key), _TENSOR, _recall(len(_PREAMBLE) + memo[properties]), size, *parts, pickle.APPENDS, _BUILD]
    for key in trees:
        out += [_text(key), _BYTES]
    out += [pickle.SETITEMS, _text("storage_data"), pickle.EMPTY_DICT]
    for fragment in fragments:
        if fragment.places:
            out += [pickle.MARK, fragment.places, pickle.SETITEMS]
    # How dcp's converters nest what they read: `model.<fqn>` becomes ["model"]["<fqn>"].
    out += [_text("planner_data"), pickle.EMPTY_DICT, pickle.MARK]
    for key in (*chunks, *trees):
        parts = [_text(part) for part in key.split(".", 1)]
        out += [_text(key), *parts, pickle.TUPLE1 if len(parts) == 1 else pickle.TUPLE2]
    out += [pickle.SETITEMS]
    rest = {"storage_meta": StorageMeta(), "version": CURRENT_DCP_VERSION}
    for name, value in rest.items():
        out += [_text(name), _embedded(value)]
    out += [pickle.SETITEMS, pickle.BUILD, pickle.STOP]
    return b"".join(out)


def _facts(item: Item) -> tuple[bytes, bytes]:
    assert item.dtype is not None
    opening = pickle.EMPTY_LIST + pickle.MARK
    size = b"".join((_GET["size"], _size(item.whole), _GET["chunks"], opening))
    return _properties(item.dtype, item.requires_grad, item.is_pinned), size


def _recall(number: int) -> bytes:
    return _get(number) if number < 256 else pickle.LONG_BINGET + struct.pack("<I", number)


@lru_cache(maxsize=256)
def _properties(dtype: torch.dtype, requires_grad: bool, is_pinned: bool) -> bytes:
    return _embedded(TensorProperties(dtype=dtype, requires_grad=requires_grad, pin_memory=is_pinned))


def _embedded(value: Any) -> bytes:
    """The opcodes of a value, which use no memo."""
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, protocol=4)
    pickler.fast = True
    pickler.dump(value)
    data = stream.getvalue()[2:-1]
    return data[9:] if data[:1] == pickle.FRAME else data


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    if len(data) < 256:
        return pickle.SHORT_BINUNICODE + bytes([len(data)]) + data
    return pickle.BINUNICODE + struct.pack("<I", len(data)) + data


def _int(value: int) -> bytes:
    if value < 256:
        return pickle.BININT1 + bytes([value])
    if value < 1 << 31:
        return pickle.BININT + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return pickle.LONG1 + bytes([len(data)]) + data


@lru_cache(maxsize=65536)
def _size(shape: tuple[int, ...]) -> bytes:
    """A `torch.Size`."""
    numbers = b"".join(map(_int, shape))
    inner = pickle.MARK + numbers + pickle.TUPLE if shape else pickle.EMPTY_TUPLE
    return _GET[torch.Size] + inner + pickle.TUPLE1 + pickle.REDUCE


class MetadataParts:
    """The fragments of all ranks, as the main process keeps them from save to save."""

    def __init__(self) -> None:
        self._fragments: dict[int, Fragment] = {}
        self._whole: bytes | None = None

    def update(self, fragments: Sequence[Fragment | None]) -> bytes:
        """Take over what has changed (None: as before). Returns `.metadata`; the same object while nothing changes."""
        changed = {rank: fragment for rank, fragment in enumerate(fragments) if fragment is not None}
        if changed or self._whole is None:
            self._fragments |= changed
            self._whole = join([self._fragments[rank] for rank in range(len(fragments))])
        return self._whole
