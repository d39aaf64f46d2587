"""Reads tensors and Python trees of a DCP folder. Every rank plans for itself; no collective is needed."""

from collections.abc import Collection, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem

from keepstep.dcp.metadata import read_metadata

_TREE = object()


class _SafePlanner(DefaultLoadPlanner):
    """Keeps Python trees apart from tensors, and reads them without general unpickling."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.trees: dict[str, Any] = {}

    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        self.trees[read_item.dest_index.fqn] = torch.load(value, weights_only=True, map_location="cpu")


def read(
    folder: Path, tensors: Mapping[str, torch.Tensor], trees: Collection[str], metadata: Metadata | None = None
) -> dict[str, Any]:
    """Fill tensors in place, each rank its own shards, and return Python trees.

    Args:
        folder: the checkpoint.
        tensors: key to the tensor to fill; DTensors get their local part.
        trees: keys of Python trees.
        metadata: the folder's metadata, if it was read before.

    Returns:
        Key to plain tree (see `keepstep.state.codec`).
    """
    found = metadata or read_metadata(folder)
    reader = FileSystemReader(folder)
    planner = _SafePlanner()
    planner.set_up_planner({**tensors, **dict.fromkeys(trees, _TREE)}, found, is_coordinator=True)
    reader.set_up_storage_reader(found, is_coordinator=True)
    plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))
    with torch.no_grad():
        reader.read_data(plan, planner).wait()
    return planner.trees
