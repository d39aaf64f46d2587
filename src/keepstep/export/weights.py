"""From a checkpoint to a safetensors model state, atomically. Needs no model code and no GPU."""

import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from keepstep.dcp.metadata import read_metadata, stored_keys
from keepstep.dcp.reader import read
from keepstep.errors import ConfigError, DamagedCheckpointError
from keepstep.export.source import SINGLE_FILE, find_files
from keepstep.plan import layout
from keepstep.state.component import under
from keepstep.storage.local import make_folders, publish, remove_tree, replace_text, sync_folder
from keepstep.storage.survey import inspect
from keepstep.storage.verify import verify_files

RECORD_FILE = "keepstep.json"
_PREFIX = "model"


def export(checkpoint: Path, target: Path, source: str | None = None) -> None:
    """Write the model of a checkpoint to `<target>/model.safetensors`; the folder appears when it is complete.

    Args:
        checkpoint: a `save-<step>` folder.
        target: the folder to make. In the folder of an earlier export only keepstep's own files are replaced; a
            folder with anything else is refused.
        source: where parameters come from that a trainable-only checkpoint does not hold.

    Raises:
        ConfigError: `target` holds something that is no export, or `source` is no model state.
        DamagedCheckpointError: a byte of the checkpoint has changed.
    """
    check_target(target)
    _check_undamaged(checkpoint)
    weights = _weights(checkpoint)
    if source is not None:
        weights = {**_others(source, set(weights)), **weights}
    identity = identity_of(checkpoint)
    # One entry only: safetensors writes several in an order that differs from run to run, and equal weights should be
    # equal files. Which checkpoint they are of stands in the record.
    metadata = {"format": "pt"}
    if target.is_dir():
        _write_into(target, weights, metadata, identity)
        return
    make_folders(target.parent)
    scratch = target.with_name(f".{target.name}.keepstep-tmp")
    remove_tree(scratch)
    scratch.mkdir()
    try:
        _write_into(scratch, weights, metadata, identity)
        publish(scratch, target)
    finally:
        remove_tree(scratch)


def _write_into(
    folder: Path, weights: dict[str, torch.Tensor], metadata: dict[str, str], identity: dict[str, str | int]
) -> None:
    """Put weights and record into a folder, whatever else lies there (a tokenizer, a config).

    When the new weights are on disk the record goes, and it comes back last: weights without it are made again.
    """
    scratch = folder / f".{SINGLE_FILE}.keepstep-tmp"
    try:
        save_file(weights, scratch, metadata)
        _sync_file(scratch)
        (folder / RECORD_FILE).unlink(missing_ok=True)
        sync_folder(folder)
        scratch.rename(folder / SINGLE_FILE)
    finally:
        scratch.unlink(missing_ok=True)
    replace_text(folder / RECORD_FILE, json.dumps(identity, indent=1) + "\n")


def _check_undamaged(checkpoint: Path) -> None:
    step = layout.step_of(checkpoint.name)
    found = None if step is None else inspect(checkpoint, step)
    if found is None or found.manifest is None:
        raise ConfigError(f"{checkpoint} is not a checkpoint of keepstep (a save-<step> folder with a manifest)")
    problems = [found.found.problem] if found.found.problem else []
    problems = problems or [str(one) for one in verify_files(checkpoint, found.manifest, sorted(found.manifest.files))]
    if problems:
        raise DamagedCheckpointError(f"{checkpoint} is damaged and not exported: {problems[0]}")


def identity_of(checkpoint: Path) -> dict[str, str | int]:
    """What tells one checkpoint's export from another's: step, and the digest of its manifest."""
    step = layout.step_of(checkpoint.name)
    manifest = json.loads((checkpoint / layout.MANIFEST).read_text())
    return {"step": step if step is not None else -1, "checkpoint": str(manifest["digest"])}


def is_exported(checkpoint: Path, target: Path) -> bool:
    """Whether `target` is the export of this very checkpoint."""
    try:
        record = json.loads((target / RECORD_FILE).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return bool(record == identity_of(checkpoint)) and (target / SINGLE_FILE).is_file()


def check_target(target: Path) -> None:
    """Refuse a target that holds something that is no export. Raises ConfigError."""
    if not os.path.lexists(target) or (target / RECORD_FILE).is_file():
        return
    if target.is_dir() and not any(target.iterdir()):
        return
    raise ConfigError(f"export to {target}: something that is no export of keepstep lies there; choose another folder")


def _weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    metadata = read_metadata(checkpoint)
    tensors = {
        key: torch.empty(what.shape, dtype=what.dtype)
        for key, what in under(_PREFIX, stored_keys(metadata)).items()
        if what.shape is not None
    }
    read(checkpoint, tensors, ())
    return {key.removeprefix(f"{_PREFIX}."): tensor for key, tensor in tensors.items()}


def _others(source: str, held: set[str]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in find_files(source):
        try:
            with safe_open(file, framework="pt") as content:
                found |= {name: content.get_tensor(name) for name in set(content.keys()) - held}
        except SafetensorError as error:
            raise ConfigError(f"{file} is not readable: {error}") from error
    return found


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
