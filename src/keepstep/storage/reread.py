"""Reads from the disk what was read from the cache before: a page that is bad in memory alone is no damage."""

import errno
import mmap
import os
from pathlib import Path

_PAGE = 4096


def read_past_cache(path: Path, offset: int, size: int) -> bytes:
    """Read a part of a file from the disk. Where the file system cannot do that, its pages are dropped first.

    Args:
        path: the file.
        offset: where to begin, in bytes; a multiple of 4096.
        size: how many bytes; fewer come back where the file ends.

    Raises:
        OSError: it cannot be read.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return _read(path, flags | getattr(os, "O_DIRECT", 0), offset, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    return _read(path, flags, offset, size)


def _read(path: Path, flags: int, offset: int, size: int) -> bytes:
    length = max(1, -(-size // _PAGE)) * _PAGE
    descriptor = os.open(path, flags)
    try:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(-1, length) as buffer, memoryview(buffer) as view:
            done = 0
            while done < size:
                with view[done:] as rest:
                    count = os.preadv(descriptor, [rest], offset + done)
                done += count
                # A direct read that ends inside a page has come to the end of the file.
                if not count or done % _PAGE:
                    break
            return bytes(view[: min(done, size)])
    finally:
        os.close(descriptor)
