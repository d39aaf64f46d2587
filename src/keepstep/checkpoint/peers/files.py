"""Files that are sent to another rank, or taken from one.

What goes wrong is noted: whoever raised would leave others waiting.
"""

import os
from pathlib import Path

from keepstep.plan.manifest import FileRecord
from keepstep.storage.digest import digest_of_blocks
from keepstep.storage.local import DurableFile
from keepstep.storage.part import read_fully
from keepstep.storage.plain import NotPlainError, open_plain


class SentFile:
    """A file that is sent. Where it cannot be read, zeros go: the other side sees it by the digest.

    Attributes:
        problem: why it could not be read; None as long as it could.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path, self.size = path, size
        self._descriptor = -1
        self.problem: Exception | None = None

    def fill(self, offset: int, piece: memoryview) -> None:
        try:
            if self._descriptor < 0 and self.problem is None:
                self._descriptor = open_plain(self._path)
            if self.problem is None:
                read_fully(self._descriptor, offset, piece)
        except (OSError, EOFError, NotPlainError) as error:
            self.problem = error
        if self.problem is not None:
            piece[:] = bytes(len(piece))
        if self.problem is not None or offset + len(piece) >= self.size:
            self.close()

    def close(self) -> None:
        """Close what is open."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class TakenFile:
    """A file that another rank sends: written, digested on the way, and synced.

    Args:
        path: its name must be free.
        record: what it must be.

    Attributes:
        problem: why it could not be written; None as long as it could.
        is_good: whether it is there, synced, and what it must be.
    """

    def __init__(self, path: Path, record: FileRecord) -> None:
        self.path, self.record, self.size = path, record, record.size
        self._file: DurableFile | None = None
        self.problem: OSError | None = None
        self.is_good = False
        if not self.size:
            self.take(memoryview(b""))

    def take(self, piece: memoryview) -> None:
        if self.problem is not None:
            return
        try:
            if self._file is None:
                self._file = DurableFile(self.path)
            self._file.write(piece)
            if self._file.size == self.size:
                self._file.close()
                self.is_good = digest_of_blocks(self._file.digests) == self.record.digest
        except OSError as error:
            self.problem = error
