"""Reads a local file for an upload: in pieces, digested on the way."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from keepstep.storage.digest import block_digests, digest_of_blocks
from keepstep.storage.stores.base import ChangedFileError, Upload
from keepstep.storage.stores.meter import Meter

# Whole blocks, and above the least size of a part on every object store.
PIECE = 8 * 1024 * 1024


class Pieces:
    """The pieces of a file to be uploaded. Iterating ends by an error if the bytes are not those that they should be,
    so that a damaged file never becomes a whole object.

    Attributes:
        md5s: the MD5 of each piece that was read (object stores tell that of what they have received).
    """

    def __init__(self, upload: Upload, meter: Meter) -> None:
        self._upload, self._meter = upload, meter
        self.md5s: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        digests, size = [], 0
        for piece in _read(self._upload.path):
            size += len(piece)
            digests.append(block_digests(piece))
            if size >= self._upload.size:
                self._compare(b"".join(digests), size)
            self.md5s.append(hashlib.md5(piece, usedforsecurity=False).digest())
            self._meter.add(len(piece))
            yield piece
        self._compare(b"".join(digests), size)

    def e_tag(self) -> str:
        """What S3 calls an object of these pieces, if each was a part of its own."""
        return f"{hashlib.md5(b''.join(self.md5s), usedforsecurity=False).hexdigest()}-{len(self.md5s)}"

    def e_tag_of_one(self) -> str:
        """What S3 calls an object that was sent in one piece."""
        return self.md5s[0].hex() if self.md5s else hashlib.md5(b"", usedforsecurity=False).hexdigest()

    def _compare(self, digests: bytes, size: int) -> None:
        upload = self._upload
        if size != upload.size:
            raise ChangedFileError(f"{upload.path} has {size} bytes, not the {upload.size} of its manifest")
        if digest_of_blocks(digests) != upload.digest:
            raise ChangedFileError(f"{upload.path} is not as it was written (see keepstep verify)")


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while True:
            piece = file.read(PIECE)
            if not piece:
                return
            while len(piece) < PIECE and (more := file.read(PIECE - len(piece))):
                piece += more
            yield piece
