"""What a Trainer's checkpoint holds: tensors from the headers of its safetensors files, all else file by file."""

from dataclasses import replace
from pathlib import Path

from keepstep.ops.safetensors_source import is_export, safetensors_side
from keepstep.ops.tensor_source import DataFile, Item, Side, committed, local_file
from keepstep.plan import layout
from keepstep.plan.difference import Kind
from keepstep.plan.evidence import Digests
from keepstep.plan.manifest import FileRecord, Manifest
from keepstep.plan.pieces import Shard
from keepstep.plan.weight_files import INDEX_FILE
from keepstep.storage.digest import DIGEST_SIZE
from keepstep.storage.run_record import read_record

# The dtype of a file that is compared as a whole.
FILE = "file"


def trainer_side(path: Path) -> Side:
    """Look into a committed `checkpoint-<step>`.

    The manifest's digest of a file stands for all of its bytes: files that are equal are not read.

    Raises:
        CheckpointNotFoundError: it was not committed.
        DamagedCheckpointError: a file of it is missing, or a header does not fit its file.
        CouldNotLookError: it cannot be read.
    """
    manifest = committed(path)
    weights = safetensors_side(path) if is_export(path) else None
    files, items = _weights(path, manifest, weights)
    known = {file.name for file in files} | {layout.RUN_RECORD, INDEX_FILE}
    for name in sorted(manifest.files.keys() - known):
        record = manifest.files[name]
        shard = Shard((0,), (record.size,), len(files), 0)
        items[name] = Item(Kind(name, FILE, (record.size,), record.size), 1, (shard,))
        files.append(local_file(path / name, record.size, _digests(record)))
    return Side(
        path=str(path),
        form="checkpoint",
        step=manifest.step,
        world_size=manifest.world_size,
        size=manifest.size,
        record=read_record(path),
        files=tuple(files),
        items=items,
    )


def _weights(path: Path, manifest: Manifest, side: Side | None) -> tuple[list[DataFile], dict[str, Item]]:
    """Files and tensors of the weights. A file that the manifest does not have is not the checkpoint's."""
    if side is None:
        return [], {}
    files = []
    for file in side.files:
        record = manifest.files.get(file.name)
        digests = _digests(record) if record is not None and record.size == file.size else Digests(b"", 1, 1)
        files.append(replace(file, digests=digests))
    theirs = {number for number, file in enumerate(files) if file.name in manifest.files}
    return files, {key: item for key, item in side.items.items() if item.shards[0].file in theirs}


def _digests(record: FileRecord) -> Digests:
    """The file as one block."""
    try:
        digest = bytes.fromhex(record.digest)
    except ValueError:
        digest = b""
    return Digests(digest, max(1, record.size), DIGEST_SIZE) if len(digest) == DIGEST_SIZE else Digests(b"", 1, 1)
