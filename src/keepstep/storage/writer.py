"""Writes a file from memory at the speed of the disk: large aligned blocks past the cache, digests on the way."""

import errno
import fcntl
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from keepstep.storage.buffers import PAGE, PageBuffer
from keepstep.storage.digest import BLOCK_SIZE, DIGEST_SIZE, block_digests
from keepstep.storage.parallel import run_on

# Bytes that go to the disk in one call.
WINDOW = 32 * 1024 * 1024
# Digested while they are still in the processor's cache.
_HOT = 512 * 1024
# Below this, a file is as well in the cache: the next reader finds it there.
_DIRECT_FROM = 8 * 1024 * 1024


class Image(Protocol):
    """The content of a file to be, in memory."""

    @property
    def size(self) -> int:
        """Bytes."""

    def read(self, begin: int, target: memoryview) -> None:
        """Copy the bytes from `begin` on into `target`."""

    def view(self, begin: int, end: int) -> memoryview | None:
        """These bytes where they lie, if they lie in one page-aligned piece."""


@dataclass(frozen=True)
class WrittenFile:
    """Digests of all blocks, joined, and the seconds of writing and of the sync."""

    size: int
    digests: bytes
    write_seconds: float
    sync_seconds: float


class Writer:
    """Writes images, with buffers that are kept for the next.

    Args:
        threads: at most so many are at work on one file.
        begin_thread: called by each of them when it starts (priorities belong to threads).
    """

    def __init__(self, threads: int | None = None, begin_thread: Callable[[], None] = lambda: None) -> None:
        self._threads = threads or min(4, os.cpu_count() or 1)
        self._begin_thread = begin_thread
        self._buffers: list[PageBuffer] = []

    def write(self, path: Path, image: Image) -> WrittenFile:
        """Write a new file and sync it. Its name is durable only after `sync_folder` of its folder.

        Args:
            path: where; nothing may have that name.
            image: what.

        Raises:
            FileExistsError: the name is taken: two writers never share a file.
            OSError: the disk is full or broken.
        """
        started = time.monotonic()
        windows = range(0, image.size, WINDOW)
        workers = max(1, min(self._threads, len(windows)))
        digests = bytearray(-(-image.size // BLOCK_SIZE) * DIGEST_SIZE)
        buffers = self._take(workers, min(WINDOW, image.size))
        with _Target(path, direct=image.size >= _DIRECT_FROM) as target:

            def write(begin: int) -> None:
                end = min(begin + WINDOW, image.size)
                piece, buffer = image.view(begin, end), None
                if piece is None:
                    buffer = buffers.pop()
                    piece = buffer.view[: end - begin]
                _digest(image, begin, piece, digests, is_copied=buffer is not None)
                target.write(piece, begin)
                if buffer is not None:
                    buffers.append(buffer)

            run_on(workers, iter(windows), write, self._begin_thread)
            written = time.monotonic()
            target.sync()
        return WrittenFile(image.size, bytes(digests), written - started, time.monotonic() - written)

    def _take(self, number: int, size: int) -> list[PageBuffer]:
        self._buffers = [one for one in self._buffers if one.size >= size and not one.is_inherited]
        while len(self._buffers) < number:
            self._buffers.append(PageBuffer(size))
        return self._buffers[:number]

    def release(self) -> None:
        """Give the buffers back."""
        self._buffers = []


def _digest(image: Image, begin: int, piece: memoryview, digests: bytearray, *, is_copied: bool) -> None:
    """Note the digests of a piece, which is copied to where it is written from, and digested there."""
    for at in range(0, len(piece), _HOT):
        part = piece[at : at + _HOT]
        if is_copied:
            image.read(begin + at, part)
        found = block_digests(part)
        place = (begin + at) // BLOCK_SIZE * DIGEST_SIZE
        digests[place : place + len(found)] = found


class _Target:
    """A file that is written past the cache where its file system takes that."""

    def __init__(self, path: Path, *, direct: bool) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._direct = direct and hasattr(os, "O_DIRECT")
        try:
            self._descriptor = os.open(path, flags | (os.O_DIRECT if self._direct else 0), 0o666)
        except OSError as error:
            if not self._direct or error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
            # Refused with the flag, the file may have been made all the same.
            self._direct = False
            self._descriptor = os.open(path, flags & ~os.O_EXCL, 0o666)

    def write(self, piece: memoryview, offset: int) -> None:
        while piece:
            direct = self._direct
            if direct and (len(piece) % PAGE or offset % PAGE):
                self._go_through_the_cache()
                direct = False
            try:
                done = os.pwrite(self._descriptor, piece, offset)
            except OSError as error:
                # Several threads write: another may have been refused, and turned to the cache, during this call.
                if not direct or error.errno not in (errno.EINVAL, errno.ENOTSUP):
                    raise
                self._go_through_the_cache()
                continue
            piece, offset = piece[done:], offset + done

    def _go_through_the_cache(self) -> None:
        # The descriptor first: who sees `_direct` unset must be able to write.
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        self._direct = False

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def __enter__(self) -> "_Target":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
