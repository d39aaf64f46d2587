"""Opens files that anybody may have put there: only plain ones, so that no reader waits, loops or leaves the folder."""

import errno
import os
import stat
from pathlib import Path

# A FIFO that nobody writes to must not block, and a link leads elsewhere.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# What opening answers for a link, and for a socket or a device without a driver.
_NOT_PLAIN = (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENODEV)


class NotPlainError(ValueError):
    """It is a link, a FIFO, a device or a folder, or it is longer than any such file."""


def open_plain(path: str | Path, limit: int | None = None) -> int:
    """Open a regular file for reading. Returns its descriptor, which the caller closes.

    Args:
        path: the file.
        limit: the most bytes that it may have.

    Raises:
        NotPlainError: it is something else, or longer.
        OSError: it cannot be opened; FileNotFoundError where it is missing.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in _NOT_PLAIN:
            raise NotPlainError("it is no regular file") from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotPlainError("it is no regular file")
        if limit is not None and status.st_size > limit:
            raise NotPlainError(f"it has {status.st_size} bytes; {limit} is the most")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_plain(path: str | Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes, whole. Raises as `open_plain`."""
    descriptor = open_plain(path, limit)
    try:
        left = os.fstat(descriptor).st_size
        data = os.read(descriptor, left) if left else b""
        if len(data) == left:
            return data
        pieces = [data]
        while pieces[-1]:  # one call reads 2 GiB at most
            left -= len(pieces[-1])
            pieces.append(os.read(descriptor, left) if left else b"")
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def read_head(path: str | Path, most: int) -> bytes:
    """Read the first `most` bytes of a regular file, or all that it has. Raises as `open_plain`."""
    descriptor = open_plain(path)
    try:
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)
