"""Committed checkpoints of made-up tensors, cut into shards in any way, without torch."""

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from keepstep.plan import layout
from keepstep.plan.manifest import FileRecord, Manifest, to_text
from keepstep.storage.digest import block_digests, digest_of_bytes
from keepstep.storage.index import IndexedFile, IndexItem, to_bytes

Array = npt.NDArray[Any]
Box = tuple[tuple[int, ...], tuple[int, ...]]
Cut = Callable[[str, Array], Iterable[Box]]


def whole(key: str, array: Array) -> list[Box]:
    """One shard."""
    return [((0,) * array.ndim, array.shape)]


def grid(*counts: int) -> Cut:
    """Cuts each dimension into so many parts, as even as torch's."""

    def cut(key: str, array: Array) -> list[Box]:
        parts = []
        for length, count in zip(array.shape, (*counts, *(1,) * array.ndim), strict=False):
            step = max(1, -(-length // count))
            parts.append([(at, min(step, length - at)) for at in range(0, length, step)] or [(0, 0)])
        return [(tuple(a for a, _ in box), tuple(n for _, n in box)) for box in product(*parts)]

    return cut


def craft(
    run: Path,
    step: int,
    tensors: Mapping[str, Array],
    *,
    dtypes: Mapping[str, str] | None = None,
    cut: Cut = whole,
    ranks: int = 1,
    shift: int = 0,
    align: int = 16,
    record: Mapping[str, Any] | None = None,
) -> Path:
    """Commit a `save-<step>`.

    Args:
        run: the run's folder.
        step: which.
        tensors: by key.
        dtypes: torch's name of a dtype that NumPy does not have; the array has its bits. Empty for a value, of which
            the array has the archive, its begin left out.
        cut: which shards a tensor has; they go to the ranks by turns.
        ranks: how many files.
        shift: bytes in front of the first shard of each file.
        align: shards begin at multiples of this.
        record: run.json.
    """
    folder = run / layout.checkpoint_name(step)
    folder.mkdir(parents=True)
    data = [bytearray(shift) for _ in range(ranks)]
    items: list[list[IndexItem]] = [[] for _ in range(ranks)]
    turn = 0
    for key, array in tensors.items():
        for at, shape in cut(key, array):
            file, rank = data[turn % ranks], turn % ranks
            turn += 1
            file += bytes(-len(file) % align)
            box = tuple(slice(a, a + n) for a, n in zip(at, shape, strict=True))
            payload = np.ascontiguousarray(array[box]).tobytes()
            dtype = (dtypes or {}).get(key, str(array.dtype))
            items[rank].append(IndexItem(key, len(file), len(payload), dtype, shape, at, len(file)))
            file += payload
    contents = {layout.METADATA: b"pickle", layout.RUN_RECORD: json.dumps({"step": step, **(record or {})}).encode()}
    for rank in range(ranks):
        name, content = layout.shard_name(rank), bytes(data[rank])
        contents[name] = content
        indexed = IndexedFile(name, len(content), tuple(items[rank]), block_digests(content))
        contents[layout.index_name(rank)] = to_bytes([indexed])
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    files = {name: FileRecord(len(content), digest_of_bytes(content)) for name, content in contents.items()}
    manifest = Manifest(step, 1, ranks, ("model",), files)
    (folder / layout.MANIFEST).write_text(to_text(manifest, digest_of_bytes))
    return folder
