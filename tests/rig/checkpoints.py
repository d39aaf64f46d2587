"""Checkpoints written without a job: enough for what only moves, lists and compares them."""

from pathlib import Path

from keepstep.plan import layout
from keepstep.plan.manifest import FileRecord, Manifest, to_text
from keepstep.storage.digest import digest_of_bytes


def write_checkpoint(run: Path, step: int, attempt: int = 1, content: bytes = b"", ranks: int = 1) -> Path:
    """A committed checkpoint of a few thousand bytes for each rank. Its shards are no tensors."""
    path = run / layout.checkpoint_name(step)
    path.mkdir(parents=True)
    files = {layout.METADATA: b"metadata", layout.RUN_RECORD: b'{"schema": 2, "created_at": "2026-01-01T00:00:00Z"}'}
    for rank in range(ranks):
        files[layout.shard_name(rank)] = (content or f"step {step} rank {rank} ".encode()) * 200
        files[layout.index_name(rank)] = b"index"
    records = {}
    for name, data in files.items():
        (path / name).write_bytes(data)
        records[name] = FileRecord(len(data), digest_of_bytes(data))
    manifest = Manifest(step, attempt, ranks, ("model",), records)
    (path / layout.MANIFEST).write_text(to_text(manifest, digest_of_bytes))
    return path
