"""`.metadata` made of parts is the one that DCP's own classes would be pickled to."""

import gc
import pickle
import re
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from keepstep.dcp.entries import Scope
from keepstep.dcp.fragments import MetadataParts, fragment_of, join
from keepstep.dcp.items import LARGE, Item
from keepstep.dcp.metadata import parse_metadata, stored_keys
from keepstep.dcp.shard import Shard, lay_out
from keepstep.dcp.staged import StagedImage
from keepstep.storage.buffers import PAGE, PageBuffer

EVERY = Scope.EVERY_RANK


def shard(rank: int, length: int = 3) -> Shard:
    items = [
        Item("model.big.weight", EVERY, torch.bfloat16, (600, 300), (300 * rank, 0), (300, 300), requires_grad=True),
        Item(f"rng.rank_{rank}", Scope.ONE_RANK),
        Item(f"model.only_{rank}", EVERY, torch.int64, (), (), ()),
        Item("model." + "x" * 300, EVERY, torch.float32, (2**33, 2), (2**32 * rank, 0), (1, 2)),
    ]
    return lay_out(rank, items, {f"rng.rank_{rank}": b"x" * length}, {"model.big.weight": ["model.tied"]})


def test_it_is_what_the_classes_say() -> None:
    shards = [shard(0), shard(1)]
    data = join([fragment_of(one) for one in shards])
    metadata = pickle.loads(data)
    assert isinstance(metadata, Metadata)
    big = TensorStorageMetadata(
        TensorProperties(torch.bfloat16, requires_grad=True),
        torch.Size([600, 300]),
        [ChunkStorageMetadata(torch.Size([300 * r, 0]), torch.Size([300, 300])) for r in (0, 1)],
    )
    assert metadata.state_dict_metadata["model.big.weight"] == big
    assert metadata.state_dict_metadata["model.tied"] == big
    assert metadata.state_dict_metadata["rng.rank_1"] == BytesStorageMetadata()
    for one in shards:
        for placed in one.placed:
            offset = placed.item.at if placed.item.dtype is not None else None
            found = metadata.storage_data[MetadataIndex(placed.item.key, offset)]
            assert (found.relative_path, found.offset, found.length) == (one.name, placed.offset, placed.length)
    assert metadata.planner_data["model.big.weight"] == ("model", "big.weight")
    again = pickle.loads(pickle.dumps(metadata))
    assert again == metadata
    assert _described(parse_metadata(data, Path())) == _described(metadata)
    assert stored_keys(metadata)["model.tied"].names == {"model.tied", "model.big.weight"}


def test_only_what_changed_is_joined_anew() -> None:
    parts = MetadataParts()
    first = parts.update([fragment_of(shard(0)), fragment_of(shard(1))])
    assert parts.update([None, None]) is first
    assert parts.update([None, fragment_of(shard(1, length=900))]) == join(
        [fragment_of(shard(0)), fragment_of(shard(1, length=900))]
    )


def test_large_things_begin_at_a_page_and_small_ones_are_packed() -> None:
    sizes = [10, LARGE - 1, LARGE, LARGE + 1, 5 * LARGE]
    items = [Item(f"t{size}", EVERY, torch.uint8, (size,), (0,), (size,)) for size in sizes]
    laid = lay_out(0, items, {}, {})
    assert [placed.data % PAGE == 0 for placed in laid.placed] == [size >= LARGE for size in sizes]
    ends = [placed.offset + placed.length for placed in laid.placed]
    assert all(end <= after.offset for end, after in zip(ends, laid.placed[1:], strict=False))
    assert laid.size % PAGE == 0
    assert laid.packed <= sum(sizes[:2]) + 2 * 720 + 2 * PAGE


def test_pinned_memory_is_given_back_before_it_is_unmapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device must not take what lies there next for the pages that it knows."""
    calls: list[str] = []

    class Runtime:
        def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
            calls.append("register")
            return 0

        def cudaHostUnregister(self, address: int) -> int:
            calls.append("unregister")
            return 0

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    monkeypatch.setattr(torch.cuda, "check_error", lambda code: None)
    laid = lay_out(0, [Item("a", EVERY, torch.float32, (LARGE,), (0,), (LARGE,))], {}, {})
    image = StagedImage(laid, PageBuffer(laid.size))
    image._pin()
    image._pin()
    assert calls == ["register"]
    del image
    gc.collect()
    assert calls == ["register", "unregister"]


def _described(metadata: Metadata) -> str:
    """All that it holds. What is read back is of classes of keepstep's own, each named as torch's is."""
    return re.sub(r"\b_(?=[A-Z])", "", repr(metadata))
