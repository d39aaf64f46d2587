"""Local files on their way to the Hub: digested before anything is sent, and counted while it is."""

import hashlib
import io
import os
import time
from copy import copy
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from keepstep.storage.stores.base import ChangedFileError, Upload
from keepstep.storage.stores.hub_calls import StoppedError
from keepstep.storage.stores.meter import Meter
from keepstep.storage.stores.pieces import Pieces

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd


class CountedFile(io.BufferedIOBase):
    """A local file for the Hub's client, which reads it more than once: the meter is told of each byte when it is first
    sent. It holds no descriptor but while it is read from begin to end.

    Attributes:
        is_sent: from now on reads are sends; before, they are for hashes.
        moved: when it was read last, by `time.monotonic()`.
    """

    def __init__(self, upload: Upload, meter: Meter) -> None:
        self._upload, self._meter = upload, meter
        self._position = self._told = 0
        self._descriptor: int | None = None
        self.is_sent, self.moved = False, 0.0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._upload.size}[whence]
        self._position = max(0, begin + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        rest = self._upload.size - self._position
        count = rest if size is None or size < 0 else min(size, rest)
        if count <= 0:
            self._let_go()
            return b""
        if self._descriptor is None:
            self._descriptor = os.open(self._upload.path, os.O_RDONLY)
        parts = bytearray()
        while len(parts) < count:
            part = os.pread(self._descriptor, count - len(parts), self._position + len(parts))
            if not part:
                raise StoppedError(ChangedFileError(f"{self._upload.path} has become shorter while it was read"))
            parts += part
        self._position += count
        if self._position == self._upload.size:
            self._let_go()
        self._tell_meter()
        return bytes(parts)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    read1 = read

    def close(self) -> None:
        self._let_go()
        super().close()

    def _let_go(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _tell_meter(self) -> None:
        self.moved = time.monotonic()
        if not self.is_sent:
            return
        new, self._told = self._position - self._told, max(self._told, self._position)
        try:
            self._meter.add(max(0, new))
        except Exception as error:
            raise StoppedError(error) from error
        self.moved = time.monotonic()


class Prepared:
    """A file that is as its digest says.

    Attributes:
        operation: adds it to a commit.
        sha256: of its bytes, in hex, as the Hub tells it of large files.
    """

    def __init__(self, upload: Upload, path_in_repo: str, meter: Meter) -> None:
        """Raises ChangedFileError."""
        from huggingface_hub import CommitOperationAdd

        self.upload = upload
        self.sha256 = _checked_sha256(upload, meter)
        self.file = CountedFile(upload, meter)
        try:
            self.operation = CommitOperationAdd(path_in_repo, cast(BinaryIO, self.file))
        except StoppedError as error:
            raise error.error from None
        if self.operation.upload_info.sha256.hex() != self.sha256:
            raise ChangedFileError(f"{upload.path} has changed while it was read")
        self.file.is_sent = True

    def twin(self, path_in_repo: str) -> "CommitOperationAdd":
        """An operation that adds the same content under another name, when this one has been sent.

        As a copy it knows that a large file is on the Hub already, so that nobody asks for it or sends it again. What
        small ones it holds is read from the file.
        """
        other = copy(self.operation)
        other.path_in_repo = path_in_repo
        other.path_or_fileobj = str(self.upload.path)
        other._remote_oid = None  # it told of the other name
        return other


def _checked_sha256(upload: Upload, meter: Meter) -> str:
    hasher = hashlib.sha256()
    for piece in Pieces(upload, Meter()):
        meter.add(0)  # an end is noticed here too
        hasher.update(piece)
    return hasher.hexdigest()
