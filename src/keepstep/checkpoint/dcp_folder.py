"""Writes one plain DCP folder by keepstep's writer, in place of `torch.distributed.checkpoint.save`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.tensor import DTensor

from keepstep.checkpoint.snapshot import Snapshots
from keepstep.dcp.entries import Entry
from keepstep.dcp.fragments import MetadataParts
from keepstep.dcp.writer import write_file, write_shard
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import SaveError
from keepstep.plan import layout
from keepstep.state.component import refuse_unstorable
from keepstep.storage.writer import Writer

_VALUES = (type(None), bool, int, float, str, bytes)


class _State:
    """A nested state dict as a part of a job's state, that is only ever saved."""

    name = "state"

    def __init__(self) -> None:
        self.flat: Mapping[str, Any] = {}

    def collect(self) -> dict[str, Entry]:
        for key, value in self.flat.items():
            refuse_unstorable(key, value)
        return {key: Entry(value) for key, value in self.flat.items()}


class DcpFolder:
    """Saves state dicts of one kind, one after the other: plans and memory serve all of them.

    Args:
        world: the ranks.
        buffered: copy the state, if memory allows it, so that the job may go on while it is written.
    """

    def __init__(self, world: World, *, buffered: bool) -> None:
        self._world, self._state = world, _State()
        self._snapshots = Snapshots([self._state], world, buffered=buffered)
        self._parts, self._writer = MetadataParts(), Writer()

    def take(self, folder: Path, state_dict: Mapping[str, Any]) -> Callable[[], None] | None:
        """Take a snapshot of a state dict. Collective.

        Args:
            folder: where it goes; it is there on all ranks.
            state_dict: nested dicts of tensors, DTensors and plain values.

        Returns:
            What writes it on this rank, in any thread; None where it had to be written at once.

        Raises:
            SaveError: a rank failed; the same on all ranks.
        """
        self._state.flat = flatten_state_dict(dict(state_dict))[0]
        snapshot = self._snapshots.take(0, f"saving {folder}")
        self._state.flat = {}
        told = self._world.to_main(snapshot.fragment)
        metadata = b""
        with agreed(self._world, f"saving {folder}: joining the metadata", SaveError):
            if self._world.rank == 0:
                metadata = self._parts.update(told)

        def write() -> None:
            try:
                write_shard(folder, snapshot.image, self._writer)
                if metadata:
                    write_file(folder / layout.METADATA, metadata)
            finally:
                snapshot.image.release()

        if snapshot.in_memory:
            return write
        with agreed(self._world, f"saving {folder}: writing shards", SaveError):
            write()
        return None


def is_plain(state_dict: Mapping[str, Any]) -> bool:
    """Whether keepstep's writer knows everything in a nested state dict: dense tensors, DTensors and plain values."""
    flat = flatten_state_dict(dict(state_dict))[0]
    return all(_is_tree(value) or type(value) in (torch.Tensor, torch.nn.Parameter, DTensor) for value in flat.values())


def _is_tree(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_tree, value))
    return type(value) in _VALUES
