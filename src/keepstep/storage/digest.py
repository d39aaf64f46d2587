"""Digests of bytes: xxh3-128 of every block; the digest of a file is the hash of its block digests."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import xxhash

# Large enough that a digest costs more than the call for it, small enough for slices of a tensor.
BLOCK_SIZE = 16 * 1024
DIGEST_SIZE = 16
_READ_SIZE = 8 * 1024 * 1024
_MANY = 8
_digest: Callable[[Any], bytes] = xxhash.xxh3_128_digest


def digest_of_bytes(data: bytes) -> str:
    """Digest (hex) of bytes that are kept in one piece, by the same rule as a file's."""
    return digest_of_blocks(block_digests(data))


def block_digests(data: bytes | bytearray | memoryview) -> bytes:
    """The digests of the blocks of `data`, 16 bytes each, joined. The last block may be short."""
    view = memoryview(data)
    if len(view) < _MANY * BLOCK_SIZE:
        return b"".join(
            xxhash.xxh3_128_digest(view[begin : begin + BLOCK_SIZE]) for begin in range(0, len(view), BLOCK_SIZE)
        )
    import numpy as np  # here, so that listing checkpoints needs no NumPy

    whole = len(view) - len(view) % BLOCK_SIZE
    # The loop runs in C: a loop in Python takes twice as long as the digests.
    rows = np.frombuffer(view[:whole], np.uint8).reshape(-1, BLOCK_SIZE)
    digests = b"".join(map(_digest, rows))
    return digests + xxhash.xxh3_128_digest(view[whole:]) if whole < len(view) else digests


def digest_of_blocks(digests: bytes) -> str:
    """The digest (hex) of a file with these block digests."""
    return xxhash.xxh3_128_hexdigest(digests)


def digest_file(path: Path, on_bytes: Callable[[int], object] = lambda count: None) -> tuple[int, bytes]:
    """Read a file once, and tell of the progress. Returns its size in bytes and its joined block digests."""
    size, digests = 0, []
    for piece in _pieces(path):
        size += len(piece)
        digests.append(block_digests(piece))
        on_bytes(len(piece))
    return size, b"".join(digests)


def _pieces(path: Path) -> Iterable[memoryview]:
    # Every piece but the last must be a whole number of blocks: read() of a regular file is short only at its end.
    buffer = memoryview(bytearray(_READ_SIZE))
    with path.open("rb", buffering=0) as file:
        while True:
            filled = 0
            while filled < _READ_SIZE:
                count = file.readinto(buffer[filled:])
                if not count:
                    break
                filled += count
            if filled:
                yield buffer[:filled]
            if filled < _READ_SIZE:
                return


class BlockDigester:
    """Digests bytes as they are written, whatever the sizes in which they come."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._digests: list[bytes] = []

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the file."""
        view = memoryview(data)
        if self._pending:
            need = BLOCK_SIZE - len(self._pending)
            self._pending += view[:need]
            view = view[need:]
            if len(self._pending) < BLOCK_SIZE:
                return
            self._digests.append(xxhash.xxh3_128_digest(self._pending))
            self._pending.clear()
        whole = len(view) - len(view) % BLOCK_SIZE
        self._digests.append(block_digests(view[:whole]))
        self._pending += view[whole:]

    def finish(self) -> bytes:
        """The joined block digests of everything taken."""
        last = xxhash.xxh3_128_digest(self._pending) if self._pending else b""
        return b"".join(self._digests) + last
