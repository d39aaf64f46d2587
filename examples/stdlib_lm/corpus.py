"""The source text of the Python standard library on this machine, as training windows and as held-out files."""

import hashlib
import os
import sysconfig
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from keepstep.job.protocols import JobContext

_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data", "encodings"}
_ROOT = Path(sysconfig.get_paths()["stdlib"])


def source_files(*, held_out: bool) -> list[Path]:
    """The .py files of one split, sorted. One in 40 is held out, chosen by the hash of its path."""
    found = []
    for folder, subfolders, names in os.walk(_ROOT):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(path for path in found if (_hash(path) % 40 == 0) == held_out)


def _hash(path: Path) -> int:
    return int.from_bytes(hashlib.sha256(path.relative_to(_ROOT).as_posix().encode()).digest()[:4], "big")


def text(*, held_out: bool) -> NDArray[np.uint8]:
    """All bytes of one split."""
    return np.frombuffer(b"\n".join(path.read_bytes() for path in source_files(held_out=held_out)), dtype=np.uint8)


class Windows:
    """Windows of length + 1 bytes: all but the last are read, all but the first are predicted."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._text = torch.from_numpy(text(held_out=False).copy())

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        begin = index * self._length
        return self._text[begin : begin + self._length + 1].long()


class Files:
    """Held-out files: (name, bytes). A batch is a list of them."""

    def __init__(self) -> None:
        self._files = source_files(held_out=True)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[str, bytes]:
        path = self._files[index]
        return path.relative_to(_ROOT).as_posix(), path.read_bytes()

    @staticmethod
    def collate(samples: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        return samples


def windows(context: JobContext) -> Windows:
    """Training windows for the example's model."""
    return Windows(80)


def windows_small(context: JobContext) -> Windows:
    """Training windows for the model in a size for tests."""
    return Windows(32)


def files(context: JobContext) -> Files:
    """The held-out files."""
    return Files()
