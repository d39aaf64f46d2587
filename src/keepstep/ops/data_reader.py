"""Reads parts of the files of one side, a bounded number of which are open."""

import os
from collections import OrderedDict
from types import TracebackType

from keepstep.errors import CouldNotLookError, DamagedCheckpointError
from keepstep.ops.tensor_source import DataFile, Side
from keepstep.storage.part import read_fully
from keepstep.storage.plain import NotPlainError, open_plain

# A checkpoint of a thousand ranks has more files than a process may open.
_MOST = 64


class DataReader:
    """The files of a side.

    Attributes:
        bytes_read: all bytes that were read.
    """

    def __init__(self, side: Side) -> None:
        self._side = side
        self._open: OrderedDict[int, int] = OrderedDict()
        self.bytes_read = 0

    def read_into(self, number: int, offset: int, target: memoryview) -> None:
        """Fill `target` from byte `offset` of a file on.

        Raises:
            DamagedCheckpointError: the file is no longer what it was, or ends before.
            CouldNotLookError: it cannot be read.
        """
        file = self._side.files[number]
        try:
            read_fully(self._descriptor(number, file), offset, target)
        except (EOFError, NotPlainError) as error:
            raise DamagedCheckpointError(f"{file.path}: {error}; has somebody written to it just now?") from error
        except OSError as error:
            raise CouldNotLookError(f"cannot read {file.path}: {error}") from error
        self.bytes_read += len(target)

    def _descriptor(self, number: int, file: DataFile) -> int:
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        if len(self._open) >= _MOST:
            os.close(self._open.popitem(last=False)[1])
        self._open[number] = open_plain(file.path)
        return self._open[number]

    def __enter__(self) -> "DataReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._open:
            os.close(self._open.popitem()[1])
