"""What one rank holds, item by item: shards of tensors, and pickled trees."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch.distributed.tensor import DTensor

from keepstep.dcp.entries import Entry, Scope

# From this size on an item begins at a whole page, and is written by any rank that holds it, not by the first one.
LARGE = 64 * 1024


@dataclass(frozen=True)
class Item:
    """A shard of a tensor, or a tree (`dtype` is None).

    Attributes:
        key: its name.
        dtype: of the tensor.
        whole, at, shape: shape of the whole tensor; where the shard begins in it; the shard's own shape.
        scope: whose value it is.
        requires_grad, is_pinned: DCP notes these of a tensor.
    """

    key: str
    scope: Scope
    dtype: torch.dtype | None = None
    whole: tuple[int, ...] = ()
    at: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    requires_grad: bool = False
    is_pinned: bool = False

    @property
    def size(self) -> int:
        """Bytes of the shard; 0 of a tree."""
        return self.dtype.itemsize * math.prod(self.shape) if self.dtype is not None else 0

    @property
    def place(self) -> bytes:
        """A digest of key and place: what has the same one is the same part of the same thing."""
        return xxhash.xxh3_128_digest(f"{self.key}\0{self.at}".encode("utf-8", "surrogatepass"))


def own_entries(entries: Mapping[str, Entry], rank: int) -> dict[str, Entry]:
    """The entries that this rank may write: of the main process's alone, only there."""
    return {key: entry for key, entry in entries.items() if entry.scope is not Scope.MAIN or rank == 0}


def list_items(entries: Mapping[str, Entry]) -> list[Item]:
    """What this rank holds, aliases left out."""
    return [item for key, entry in entries.items() if not entry.same_as for item in _items(key, entry)]


def local_value(value: Any) -> Any:
    """Of a DTensor this rank's shard; anything else as it is."""
    if isinstance(value, DTensor):
        with torch.no_grad():
            return value.to_local()
    return value


def signature(entries: Mapping[str, Entry]) -> list[tuple[Any, ...]]:
    """What a plan depends on: names, types and shapes, and not values."""
    return [(key, entry.scope, entry.same_as, *_kind(entry.value)) for key, entry in entries.items()]


def _kind(value: Any) -> tuple[Any, ...]:
    if isinstance(value, DTensor):
        return value.dtype, value.shape, value.placements, value.device_mesh
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape
    return ()


def _items(key: str, entry: Entry) -> Iterable[Item]:
    value = entry.value
    if not isinstance(value, torch.Tensor):
        return [Item(key, entry.scope)]
    facts = value.requires_grad, not isinstance(value, DTensor) and value.is_pinned()
    whole = tuple(value.shape)
    if not isinstance(value, DTensor):
        return [Item(key, entry.scope, value.dtype, whole, (0,) * len(whole), whole, *facts)]
    if not value.numel():
        return [Item(key, entry.scope, value.dtype, whole, (0,) * len(whole), whole, *facts)]
    return [
        Item(key, entry.scope, value.dtype, whole, tuple(chunk.offsets), tuple(chunk.sizes), *facts)
        for chunk in value.__create_chunk_list__()
        if all(chunk.sizes)
    ]
