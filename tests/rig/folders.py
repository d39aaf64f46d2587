"""Checkpoint folders without torch: right in form, with made-up content."""

import os
from pathlib import Path

from keepstep.plan import layout
from keepstep.plan.manifest import FileRecord, Manifest, to_text
from keepstep.storage.digest import block_digests, digest_of_blocks, digest_of_bytes
from keepstep.storage.index import IndexedFile, IndexItem, to_bytes


def names(run: Path) -> list[str]:
    """What lies in a run's folder, beside keepstep's own book-keeping (the lock of whoever is at work there)."""
    return sorted(name for name in os.listdir(run) if name != layout.KEEPSTEP_FOLDER)


def make_checkpoint(run: Path, step: int, *, attempt: int = 1, size: int = 40_000) -> Path:
    """A committed `save-<step>` with one shard file of two tensors."""
    folder = run / layout.checkpoint_name(step)
    folder.mkdir(parents=True)
    data = bytes(i % 251 for i in range(size))
    items = (
        IndexItem("model.first", 0, size // 2, "float32", (size // 8,), (0,)),
        IndexItem("model.second", size // 2, size - size // 2, "float32", (size // 8,), (0,)),
    )
    index = to_bytes([IndexedFile("__0_0.distcp", size, items, block_digests(data))])
    record = f'{{"step": {step}, "created_at": "2026-01-01T00:00:00Z", "run": "made-up"}}'.encode()
    contents = {"__0_0.distcp": data, "__0.index": index, ".metadata": b"pickle", "run.json": record}
    files = {}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        files[name] = FileRecord(len(content), digest_of_blocks(block_digests(content)))
    manifest = Manifest(step, attempt, 1, ("model",), files)
    (folder / layout.MANIFEST).write_text(to_text(manifest, digest_of_bytes))
    return folder
