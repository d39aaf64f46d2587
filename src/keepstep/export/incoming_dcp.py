"""Reads the weights in a folder of plain `torch.distributed.checkpoint.save`. They are all in memory then."""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from keepstep.dcp.foreign import load_dcp
from keepstep.dcp.metadata import read_metadata, stored_keys
from keepstep.errors import DamagedCheckpointError
from keepstep.plan.picking import PickingError, pick


def read_dcp_folder(source: Path, prefix: str | None) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """The weights by name, and what else the folder holds. Of keys that lie at one place all names get one tensor.

    Args:
        source: the folder.
        prefix: see `keepstep.plan.picking.pick`.

    Raises:
        PickingError: the weights cannot be told from other values.
        DamagedCheckpointError, UnsupportedStateError, CouldNotLookError: as `load_dcp` and `read_metadata`.
    """
    metadata = read_metadata(source)
    described: Mapping[str, Any] = metadata.state_dict_metadata
    key_at: dict[tuple[str, ...], str] = {}
    for key, path in _paths(metadata).items():
        if path in key_at:
            raise PickingError(f"two of its keys have the name {'.'.join(path)}")
        key_at[path] = key
    picked = pick({path: isinstance(described[key], TensorStorageMetadata) for path, key in key_at.items()}, prefix)
    keys = {name: key_at[path] for name, path in picked.paths.items()}
    taken, stored = frozenset(keys.values()), stored_keys(metadata)
    first = {key: min(stored[key].names & taken, default=key) for key in taken}
    _refuse_cut(source, metadata, [described[key] for key in set(first.values())])
    tensors = {
        key: torch.empty(described[key].size, dtype=described[key].properties.dtype) for key in set(first.values())
    }
    load_dcp(tensors, source)
    return {name: tensors[first[key]] for name, key in keys.items()}, picked.left_out


def _paths(metadata: Metadata) -> dict[str, tuple[str, ...]]:
    """Where each key was in the nested dicts that were saved; a key of which that is not told is a name at the top."""
    noted: Any = metadata.planner_data
    paths = {}
    for key in metadata.state_dict_metadata:
        path: Any = noted.get(key) if isinstance(noted, dict) else None
        is_path = isinstance(path, tuple) and bool(path) and all(type(part) in (str, int) for part in path)
        paths[key] = tuple(map(str, path)) if is_path else (key,)
    return paths


def _refuse_cut(source: Path, metadata: Metadata, wanted: Sequence[Any]) -> None:
    """Refuse sizes that the files cannot hold, before memory is made for them."""
    if any(place.transform_descriptors for place in metadata.storage_data.values()):
        return  # compressed, they take less than they hold
    files = [source / name for name in {place.relative_path for place in metadata.storage_data.values()}]
    there = sum(file.stat().st_size for file in files if file.is_file())
    size = sum(prod(what.size) * what.properties.dtype.itemsize for what in wanted)
    if size > there:
        raise DamagedCheckpointError(f"{source} is not complete: its tensors take {size} bytes, its files {there}")
