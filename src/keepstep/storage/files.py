"""The files of one checkpoint, read the same way wherever they lie: in a folder, or on storage far away."""

import os
from pathlib import Path
from typing import Protocol

from keepstep.storage.part import read_fully
from keepstep.storage.plain import open_plain, read_plain
from keepstep.storage.reread import read_past_cache


class OpenFile(Protocol):
    """A file that is open for reading. Several threads may read at once."""

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset` on. Raises EOFError where the file ends before, OSError where it fails."""

    def reread(self, offset: int, size: int) -> bytes:
        """A part once more, from where no cache or memory can be at fault. Fewer bytes come where the file ends."""

    def close(self) -> None:
        """Close it. May be called twice."""


class Files(Protocol):
    """The files of a checkpoint by name. `str` of it says where they lie."""

    @property
    def name(self) -> str:
        """What the checkpoint is called: `save-<step>`."""

    def read(self, name: str, limit: int) -> bytes:
        """A whole small file.

        Raises:
            NotPlainError: it is no regular file, or longer than `limit` bytes.
            FileNotFoundError: it is missing.
            OSError: it cannot be read.
        """

    def reread(self, name: str, size: int) -> bytes:
        """The first bytes of a file once more, as `OpenFile.reread`."""

    def open(self, name: str) -> OpenFile:
        """Open a file. Raises FileNotFoundError or OSError, here or at the first read."""


class LocalFiles:
    """A checkpoint in a folder of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    @property
    def name(self) -> str:
        return self._path.name

    def read(self, name: str, limit: int) -> bytes:
        return read_plain(self._path / name, limit)

    def reread(self, name: str, size: int) -> bytes:
        return read_past_cache(self._path / name, 0, size)

    def open(self, name: str) -> OpenFile:
        path = self._path / name
        return _LocalFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))


def open_local(path: Path) -> OpenFile:
    """Open a file that anybody may have put there. Raises as `open_plain`."""
    return _LocalFile(path, open_plain(path))


class _LocalFile:
    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor

    def read_into(self, offset: int, target: memoryview) -> None:
        read_fully(self._descriptor, offset, target)

    def reread(self, offset: int, size: int) -> bytes:
        return read_past_cache(self._path, offset, size)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def as_files(place: Path | Files) -> Files:
    """The files at a path, or what is given."""
    return LocalFiles(place) if isinstance(place, Path) else place
