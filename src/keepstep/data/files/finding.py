"""Finds the files of a data set: single ones, patterns, folders."""

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from keepstep.errors import ConfigError

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def find_files(paths: Paths, endings: Sequence[str]) -> tuple[str, ...]:
    """All files, absolute: entries in the order given, those of a pattern or a folder sorted by name.

    Args:
        paths: files, patterns (`data/*.jsonl`, `**` for any depth) or folders; of a folder all files below it that
            have one of the endings. Hidden ones and those that begin with `_` are passed over.
        endings: of the files that are taken from folders.

    Raises:
        ConfigError: an entry finds no file, or two find the same.
    """
    entries = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not entries:
        raise ConfigError("paths: names no file")
    found: dict[str, str] = {}
    for entry in [os.fspath(entry) for entry in entries]:
        for path in _of_entry(entry, endings):
            if path in found:
                raise ConfigError(f"paths: {path} is taken twice, by {found[path]} and by {entry}")
            found[path] = entry
    return tuple(found)


def _of_entry(entry: str, endings: Sequence[str]) -> list[str]:
    if os.path.isfile(entry):
        return [os.path.abspath(entry)]
    if os.path.isdir(entry):
        below = [path for ending in endings for path in Path(entry).rglob(f"*{ending}") if _is_meant(path, entry)]
        what = f"no file that ends in {' or '.join(endings)} lies below the folder"
    else:
        below = [Path(path) for path in glob.glob(entry, recursive=True) if os.path.isfile(path)]
        what = "there is no such file"
    if not below:
        raise ConfigError(f"paths: {entry}: {what}")
    return [os.path.abspath(path) for path in sorted(below)]


def _is_meant(path: Path, folder: str) -> bool:
    return path.is_file() and not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
