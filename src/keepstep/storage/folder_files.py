"""The files of a checkpoint that other code wrote: listed, digested, and made durable."""

import os
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from keepstep.plan import layout
from keepstep.plan.manifest import FileRecord
from keepstep.storage.digest import digest_file, digest_of_blocks


def files_below(folder: Path, ours: Collection[str] = ()) -> list[tuple[str, int]]:
    """Names (`a/b`) and sizes of all files of a checkpoint that is not committed yet, in order.

    Args:
        folder: the checkpoint.
        ours: names of files that are left out, since keepstep has written them.

    Raises:
        ValueError: something there is no regular file, or has a name that cannot stand in a manifest.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name in ours:
            continue
        if path.is_dir() and not path.is_symlink():
            continue
        if path.is_symlink() or not path.is_file() or not layout.is_safe_path(name):
            raise ValueError(f"{path} cannot be part of a checkpoint: only plain files can")
        if name in (layout.MANIFEST, layout.RUN_RECORD):
            raise ValueError(f"{path}: this name is keepstep's; write to another one")
        found.append((name, path.stat().st_size))
    return found


def folders_below(folder: Path) -> list[Path]:
    """The folders in a checkpoint, at any depth."""
    return [path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink()]


def digest_and_sync(
    folder: Path, names: Sequence[str], on_bytes: Callable[[int], object] = lambda count: None
) -> dict[str, FileRecord]:
    """Digest files while the disk takes them.

    Args:
        folder: the checkpoint.
        names: of files below it.
        on_bytes: told how many bytes more were digested.

    Raises:
        OSError: one of them cannot be read or synced.
    """
    problems: list[OSError] = []

    def sync_all() -> None:
        try:
            for name in names:
                _sync_file(folder / name)
        except OSError as error:
            problems.append(error)

    thread = threading.Thread(target=sync_all, name="keepstep-sync")
    thread.start()
    try:
        records = {}
        for name in names:
            size, digests = digest_file(folder / name, on_bytes)
            records[name] = FileRecord(size, digest_of_blocks(digests))
    finally:
        thread.join()
    if problems:
        raise problems[0]
    return records


def _sync_file(path: Path) -> None:
    # Opened for writing: some network file systems sync nothing through a descriptor that may only read.
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
