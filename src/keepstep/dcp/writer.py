"""Writes this rank's part of a checkpoint: one shard file and the index of its digests."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import WriteItem

from keepstep.dcp.digests import bytes_of
from keepstep.dcp.framing import frame
from keepstep.dcp.plan import WritePlan
from keepstep.plan import layout
from keepstep.plan.manifest import FileRecord
from keepstep.storage.digest import digest_of_blocks
from keepstep.storage.index import IndexedFile, IndexItem, to_bytes
from keepstep.storage.local import DurableFile


@dataclass(frozen=True)
class Written:
    """What a rank has written: its files, and where each of its items lies."""

    files: dict[str, FileRecord] = field(default_factory=dict)
    places: list[tuple[MetadataIndex, _StorageInfo]] = field(default_factory=list)


def write_shards(folder: Path, plan: WritePlan, rank: int) -> Written:
    """Write and sync this rank's items. Each is framed as torch.save does it, so that plain DCP reads it."""
    written = Written()
    items: list[IndexItem] = []
    name = layout.shard_name(rank)
    with DurableFile(folder / name) as file:
        for item in plan.own.items:
            data, offset = plan.planner.resolve_data(item), file.size
            begin = _write_tensor(file, data) if isinstance(data, torch.Tensor) else file.write(data.getbuffer())
            length = file.size - offset
            indexed, place = _indexed(item, offset, length, begin), _StorageInfo(name, offset, length)
            for key in (item.index.fqn, *plan.aliases.get(item.index.fqn, ())):
                items.append(replace(indexed, key=key))
                written.places.append((replace(item.index, fqn=key), place))
    written.files[name] = FileRecord(file.size, digest_of_blocks(file.digests))
    index = to_bytes([IndexedFile(name, file.size, tuple(items), file.digests)])
    written.files[layout.index_name(rank)] = write_file(folder / layout.index_name(rank), index)
    return written


def write_metadata(
    folder: Path, metadata: Metadata, places: Sequence[tuple[MetadataIndex, _StorageInfo]]
) -> FileRecord:
    """Write DCP's own `.metadata`, with the places of all ranks' items. No path of this machine goes into it."""
    metadata.storage_data = dict(places)
    metadata.storage_meta = StorageMeta()
    metadata.version = CURRENT_DCP_VERSION
    return write_file(folder / layout.METADATA, pickle.dumps(metadata))


def write_file(path: Path, data: bytes) -> FileRecord:
    """Write a whole file durably."""
    with DurableFile(path) as file:
        file.write(data)
    return FileRecord(file.size, digest_of_blocks(file.digests))


def _indexed(item: WriteItem, offset: int, length: int, begin: int) -> IndexItem:
    if item.tensor_data is None:
        return IndexItem(item.index.fqn, offset, length, data=begin)
    chunk, dtype = item.tensor_data.chunk, str(item.tensor_data.properties.dtype).removeprefix("torch.")
    return IndexItem(item.index.fqn, offset, length, dtype, tuple(chunk.sizes), tuple(chunk.offsets), begin)


def _write_tensor(file: DurableFile, tensor: torch.Tensor) -> int:
    """Write a tensor row by row, framed as `torch.save` does. Returns where its bytes begin."""
    raw = bytes_of(tensor)
    framed = frame(tensor.dtype, tensor.shape, len(raw), file.size)
    file.write(framed.head)
    begin = file.write(raw)
    file.write(framed.tail)
    return begin
