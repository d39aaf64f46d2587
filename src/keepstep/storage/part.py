"""A part of a file, read as if it were a file, from several threads."""

import io
import os


class FilePart(io.RawIOBase):
    """The bytes from `begin` on, `length` of them.

    Args:
        descriptor: of the file; it is not closed.
        begin, length: in bytes.
    """

    def __init__(self, descriptor: int, begin: int, length: int) -> None:
        self._descriptor, self._begin, self._length = descriptor, begin, length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        target = memoryview(buffer)[: max(0, self._length - self._at)]
        count = os.preadv(self._descriptor, [target], self._begin + self._at) if target else 0
        self._at += count
        return count


def read_fully(descriptor: int, offset: int, target: memoryview) -> None:
    """Fill `target` from `offset` on. Raises EOFError when the file ends before."""
    done = 0
    while done < len(target):
        count = os.preadv(descriptor, [target[done:]], offset + done)
        if not count:
            raise EOFError(f"the file ends at byte {offset + done}")
        done += count
