"""Faults of files and disks, made by hand."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keepstep.errors import FaultError


def flip_bit(path: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit of a file. A negative offset counts from its end."""
    with path.open("r+b") as file:
        file.seek(offset, 2 if offset < 0 else 0)
        value = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([value[0] ^ 1 << bit]))


def cut(path: Path, size: int) -> None:
    """Leave the first `size` bytes of a file, as a write does that was torn. A negative size cuts from the end."""
    with path.open("r+b") as file:
        file.truncate(size if size >= 0 else path.stat().st_size + size)


def swap(first: Path, second: Path) -> None:
    """Let two files change names."""
    scratch = first.with_name(f"{first.name}.swap")
    first.rename(scratch)
    second.rename(first)
    scratch.rename(second)


@contextmanager
def hidden(path: Path) -> Iterator[None]:
    """A file or folder is not there during the body."""
    aside = path.with_name(f".{path.name}.hidden")
    path.rename(aside)
    try:
        yield
    finally:
        aside.rename(path)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A disk of `size` bytes at an empty folder, for the duration of the body.

    Raises:
        FaultError: nothing can be mounted here; it takes the rights of root.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FaultError(f"no small disk can be mounted at {folder}: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
