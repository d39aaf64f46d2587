"""Reads `.metadata`, which is a pickle: only DCP's own plain classes get through, all else is refused by name."""

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from keepstep.dcp.entries import Stored
from keepstep.errors import DamagedCheckpointError, UnsupportedStateError
from keepstep.plan import layout

_DCP_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    (_DCP_METADATA, name)
    for name in (
        "Metadata",
        "MetadataIndex",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    )
} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("pathlib", "WindowsPath"),
}


_ALONE: frozenset[str] = frozenset()


class _AllowListUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        raise UnsupportedStateError(
            f"{layout.METADATA} asks for {module}.{name}, which no checkpoint needs; it is not loaded"
        )


def read_metadata(folder: Path) -> Metadata:
    """Read and check the metadata of a DCP folder.

    Raises:
        DamagedCheckpointError: it is not readable as DCP metadata, or points outside the folder.
        UnsupportedStateError: it asks for a class that is not on the list.
    """
    return parse_metadata((folder / layout.METADATA).read_bytes(), folder)


def parse_metadata(data: bytes, folder: Path) -> Metadata:
    """The same for the bytes of `.metadata` of a folder."""
    try:
        metadata = _AllowListUnpickler(io.BytesIO(data)).load()
    except UnsupportedStateError:
        raise
    # A damaged pickle may raise any of these; none of them has side effects, since only plain classes get through.
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise DamagedCheckpointError(f"{folder / layout.METADATA} is not readable: {error!r}") from error
    if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
        raise DamagedCheckpointError(f"{folder / layout.METADATA} holds no DCP metadata")
    known: set[str] = set()
    for index, place in metadata.storage_data.items():
        if place.relative_path in known:
            continue
        if not layout.is_safe_file_name(place.relative_path):
            raise DamagedCheckpointError(f"{folder}: {index.fqn} lies in {place.relative_path!r}, outside the folder")
        known.add(place.relative_path)
    return metadata


def stored_keys(metadata: Metadata) -> dict[str, Stored]:
    """All keys of a checkpoint with shape and dtype."""
    keys_at: dict[tuple[str, int], list[str]] = {}
    place_of: dict[str, tuple[str, int]] = {}
    for index, place in metadata.storage_data.items():
        keys_at.setdefault((place.relative_path, place.offset), []).append(index.fqn)
        place_of.setdefault(index.fqn, (place.relative_path, place.offset))
    stored = {}
    for key, what in metadata.state_dict_metadata.items():
        names = keys_at[place_of[key]] if key in place_of else [key]
        several = frozenset(names) if len(names) > 1 else _ALONE
        if isinstance(what, TensorStorageMetadata):
            stored[key] = Stored(what.size, what.properties.dtype, several)
        else:
            stored[key] = Stored(names=several)
    return stored
