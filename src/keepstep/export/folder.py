"""The folder of an export: it appears when it is complete, and only keepstep's own files in it are ever replaced."""

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from keepstep.errors import ConfigError
from keepstep.plan.weight_files import INDEX_FILE, SINGLE_FILE, is_weight_file
from keepstep.storage.local import make_folders, publish, remove_tree, replace_text, sync_folder
from keepstep.storage.plain import NotPlainError, read_plain

RECORD_FILE = "keepstep.json"
FORMAT = 2
_SCRATCH = ".keepstep-tmp"
_MAX_RECORD = 64 * 1024 * 1024


def scratch_name(name: str) -> str:
    """What a file or folder is called until it is complete: no reader takes it for one of its own."""
    return f".{name}{_SCRATCH}"


def read_export(folder: Path) -> dict[str, Any]:
    """The record in the folder of an export; empty where there is none that is readable."""
    try:
        record = json.loads(read_plain(folder / RECORD_FILE, _MAX_RECORD))
    except (OSError, NotPlainError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def check_target(target: Path) -> None:
    """Refuse a target that holds something that is no export. Raises ConfigError."""
    if not os.path.lexists(target) or (target / RECORD_FILE).is_file():
        return
    if target.is_dir() and all(_is_leftover(name) for name in os.listdir(target)):
        return
    raise ConfigError(f"export to {target}: something that is no export of keepstep lies there; choose another folder")


def begin(target: Path) -> Path:
    """Make the folder that files are written to under their scratch names: a new one beside the target, or the target.

    What a killed export left is removed.
    """
    if target.is_dir():
        for name in os.listdir(target):
            if _is_leftover(name):
                remove_tree(target / name)
        return target
    make_folders(target.parent)
    scratch = target.with_name(scratch_name(target.name))
    remove_tree(scratch)
    scratch.mkdir()
    return scratch


def give_up(folder: Path, target: Path) -> None:
    """Remove what was written; an export that was there before stays."""
    if folder != target:
        remove_tree(folder)
        return
    for name in os.listdir(folder):
        if _is_leftover(name):
            remove_tree(folder / name)


def finish(folder: Path, target: Path, names: Collection[str], record: Mapping[str, Any]) -> None:
    """Let the files under their scratch names take the place of what was there before.

    First the record says that the export is not complete, and of which files it may consist; then goes what a reader
    begins with (the index); last come the index, or the only file, and the record. Killed in between, the folder has
    nothing that loads, or one whole model, and the next export knows what to clear.
    """
    ordered = sorted(names, key=lambda name: (name in (INDEX_FILE, SINGLE_FILE), name))
    if folder == target:
        stale = _weight_files(folder)
        _note(folder, {"format": FORMAT, "complete": False, "files": sorted(stale | set(names))})
        for name in sorted(stale, key=lambda name: name != INDEX_FILE):
            # The only file of both is replaced in one step.
            if name != SINGLE_FILE or SINGLE_FILE not in names:
                (folder / name).unlink(missing_ok=True)
        sync_folder(folder)
    for name in ordered:
        (folder / scratch_name(name)).rename(folder / name)
    sync_folder(folder)
    _note(folder, {"format": FORMAT, "complete": True, **record})
    if folder != target:
        publish(folder, target)


def is_whole(folder: Path, record: Mapping[str, Any]) -> bool:
    """Whether the weights that a record lists are there, with their sizes."""
    files = record.get("files")
    if not record.get("complete") or not isinstance(files, dict):
        return False
    weights = {name: what for name, what in files.items() if is_weight_file(name)}
    try:
        return bool(weights) and all(os.lstat(folder / n).st_size == what["size"] for n, what in weights.items())
    except (FileNotFoundError, NotADirectoryError, KeyError, TypeError):
        return False


def _weight_files(folder: Path) -> set[str]:
    """Weights that earlier exports made. No other name is believed: the record is a file like any other."""
    record = read_export(folder)
    listed = record.get("files", [SINGLE_FILE] if "step" in record else [])
    return {name for name in listed if isinstance(name, str) and is_weight_file(name)}


def _note(folder: Path, record: Mapping[str, Any]) -> None:
    replace_text(folder / RECORD_FILE, json.dumps(record, indent=1) + "\n")


def _is_leftover(name: str) -> bool:
    is_note = name.startswith(f".{RECORD_FILE}.") and name.endswith(".tmp")
    return is_note or (name.startswith(".") and name.endswith(_SCRATCH))
