"""Moves whole checkpoints between a folder and a store, every byte compared with its digest on the way."""

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from keepstep.errors import CheckpointNotFoundError, DamagedCheckpointError
from keepstep.plan import layout
from keepstep.plan.manifest import Manifest
from keepstep.plan.resume import Condition
from keepstep.storage.digest import BLOCK_SIZE, block_digests, digest_of_blocks, digest_of_bytes
from keepstep.storage.files import Files, OpenFile
from keepstep.storage.local import sync_folder
from keepstep.storage.parallel import run_on
from keepstep.storage.plain import read_plain
from keepstep.storage.stored import StoredFiles, inspect_stored
from keepstep.storage.stores.base import Store, Upload
from keepstep.storage.stores.meter import Meter
from keepstep.storage.survey import inspect

_MAX_MANIFEST = 256 * 1024 * 1024
# Read and written in one go: whole blocks.
_PIECE = 512 * BLOCK_SIZE
_AT_ONCE = 8


class TakenNameError(ValueError):
    """In a store something else has the name of a checkpoint: of a newer version, or of another program."""


@dataclass(frozen=True)
class Pushed:
    """What an upload did. `is_new` is False where the store had the checkpoint already."""

    step: int
    attempt: int
    size: int
    is_new: bool


def push_checkpoint(
    checkpoint: Path, store: Store, prefix: str, meter: Meter, confirm: Callable[[], None] = lambda: None
) -> Pushed:
    """Copy a committed checkpoint to `<prefix>/<its name>` of a store. The manifest goes last, so that it is whole for
    a reader, or not there.

    Files that an upload before has left whole are not sent again. What another attempt has saved under that name is
    removed first.

    Args:
        checkpoint: a folder that nobody deletes meanwhile (see `leases.hold`).
        store, prefix: where the run's checkpoints lie there.
        meter: counts, bounds and ends it.
        confirm: asked before anything of the store is changed, and before the manifest goes there; raises where it
            must not be.

    Raises:
        CheckpointNotFoundError: the folder is no committed checkpoint.
        DamagedCheckpointError: it is not complete.
        ChangedFileError: a file is not as its manifest says.
        TakenNameError: something else lies there under that name.
        OSError: the store cannot be asked, or refuses.
    """
    found = inspect(checkpoint, layout.any_step_of(checkpoint.name) or 0)
    manifest = found.manifest
    if manifest is None or found.found.condition is not Condition.COMPLETE:
        kind = DamagedCheckpointError if found.found.condition is Condition.DAMAGED else CheckpointNotFoundError
        raise kind(f"{checkpoint} cannot be uploaded: {found.found.problem}")
    target = f"{prefix}/{checkpoint.name}" if prefix else checkpoint.name
    text = read_plain(checkpoint / layout.MANIFEST, _MAX_MANIFEST)
    there = inspect_stored(store, target)
    if there.found.condition is Condition.COMPLETE and there.manifest == manifest:
        return Pushed(manifest.step, manifest.attempt, manifest.size, is_new=False)
    if there.found.condition is Condition.TOO_NEW or (there.manifest is None and layout.MANIFEST in there.sizes):
        raise TakenNameError(f"{there.files} is not replaced: {there.found.problem}; move it, or delete it there")
    confirm()
    if layout.MANIFEST in there.sizes:
        store.remove(target, layout.MANIFEST)
    uploads = [
        Upload(f"{target}/{name}", checkpoint / name, one.size, one.digest) for name, one in manifest.files.items()
    ]
    last = Upload(f"{target}/{layout.MANIFEST}", checkpoint / layout.MANIFEST, len(text), digest_of_bytes(text))
    store.put(uploads, last, meter, confirm)
    confirm()  # another job may have come while the last file was sent: then nobody knows what lies there
    return Pushed(manifest.step, manifest.attempt, manifest.size, is_new=True)


def pull_files(files: StoredFiles, manifest: Manifest, names: Iterable[str], target: Path, meter: Meter) -> None:
    """Fetch files of a checkpoint to a folder that is there, and sync them.

    Args:
        files: the checkpoint in a store.
        manifest: its manifest.
        names: which of its files.
        target: folder to be.
        meter: counts, bounds and ends it.

    Raises:
        DamagedCheckpointError: a file is missing, or is not as its manifest says.
        OSError: the store cannot be asked, or the disk is full.
    """
    for name in names:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        record = manifest.files[name]
        try:
            digests = _fetch(files.open(name), record.size, path, meter)
        except (FileNotFoundError, EOFError) as error:
            raise DamagedCheckpointError(f"{files} is damaged: {name}: {_short(error)}") from None
        if digest_of_blocks(digests) != record.digest:
            raise DamagedCheckpointError(f"{files} is damaged: {name} is not as its manifest says")


def write_manifest(files: Files, target: Path) -> None:
    """Fetch the manifest of a checkpoint to a folder, after all else, and sync both."""
    data = files.read(layout.MANIFEST, _MAX_MANIFEST)
    with (target / layout.MANIFEST).open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    for folder in sorted({path.parent for path in target.rglob("*") if path.is_file()}):
        sync_folder(folder)
    sync_folder(target)


def verify_stored(files: Files, manifest: Manifest, names: Collection[str], meter: Meter) -> list[tuple[str, str]]:
    """Read files of a checkpoint and compare them with its digests. Returns what is wrong: file and problem.

    Raises:
        OSError: they cannot be read. That is no damage.
    """
    wrong = []
    for name in names:
        record = manifest.files[name]
        try:
            digests = _fetch(files.open(name), record.size, None, meter)
        except FileNotFoundError:
            wrong.append((name, "it is missing"))
        except EOFError as error:
            wrong.append((name, str(error)))
        else:
            if digest_of_blocks(digests) != record.digest:
                wrong.append((name, "its content has changed"))
    return wrong


def _fetch(source: OpenFile, size: int, path: Path | None, meter: Meter) -> bytes:
    """Read a file in pieces, several at once, to a new file or nowhere. Returns its joined block digests."""
    begins = range(0, size, _PIECE)
    digests: dict[int, bytes] = {}
    descriptor = -1 if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:

        def fetch(begin: int) -> None:
            piece = memoryview(bytearray(min(_PIECE, size - begin)))
            meter.add(len(piece))
            source.read_into(begin, piece)
            digests[begin] = block_digests(piece)
            if descriptor >= 0:
                _write(descriptor, piece, begin)

        run_on(min(_AT_ONCE, len(begins)), iter(begins), fetch)
        if descriptor >= 0:
            os.fsync(descriptor)
    finally:
        source.close()
        if descriptor >= 0:
            os.close(descriptor)
    return b"".join(digests[begin] for begin in begins)


def _write(descriptor: int, piece: memoryview, offset: int) -> None:
    while piece:
        done = os.pwrite(descriptor, piece, offset)
        piece, offset = piece[done:], offset + done


def _short(error: Exception) -> str:
    return "it is missing" if isinstance(error, FileNotFoundError) else str(error)
