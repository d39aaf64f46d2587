"""Finds the files of a model state (`source_checkpoint`), and tells one from another."""

import json
from pathlib import Path

from keepstep.errors import ConfigError
from keepstep.plan import layout
from keepstep.plan.weight_files import INDEX_FILE, SINGLE_FILE
from keepstep.storage.content import FileDigests
from keepstep.storage.digest import digest_of_bytes


def find_files(source: str | Path, asked: str = "source_checkpoint") -> list[Path]:
    """The safetensors files of a model state: a file, or a folder with one, or with an index of several.

    Args:
        source: where it lies.
        asked: what the person who named it calls that, for errors.

    Raises:
        ConfigError: there is no such model state.
    """
    path = Path(source)
    if path.is_file():
        return [path]
    if (path / SINGLE_FILE).is_file():
        return [path / SINGLE_FILE]
    if (path / INDEX_FILE).is_file():
        try:
            names = set(json.loads((path / INDEX_FILE).read_text())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{asked} = {source}: {INDEX_FILE} is not readable: {error!r}") from error
        files = [path / name for name in sorted(names)]
        absent = [file for file in files if not file.is_file()]
        if absent:
            raise ConfigError(f"{asked} = {source}: {absent[0]} is named in the index and missing")
        return files
    raise ConfigError(
        f"{asked} = {source}: no model state there; it must be a .safetensors file, a folder with "
        f"{SINGLE_FILE} or {INDEX_FILE}, or a checkpoint"
    )


def is_checkpoint(source: str | Path) -> bool:
    """Whether a model state is a checkpoint of keepstep."""
    path = Path(source)
    return layout.step_of(path.absolute().name) is not None and (path / layout.MANIFEST).is_file()


def check_state(source: str | Path) -> None:
    """Raise ConfigError where there is no such model state."""
    if not is_checkpoint(source):
        find_files(source)


def source_digest(source: str | Path, files: FileDigests) -> str:
    """A digest (hex) of all bytes of a model state. Raises ConfigError when there is none.

    That of a checkpoint is its manifest's, which has the digests of all files.
    """
    held = [Path(source) / layout.MANIFEST] if is_checkpoint(source) else find_files(source)
    return digest_of_bytes("".join(files.of_all(held)).encode())
