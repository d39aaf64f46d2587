"""Reads parts of the files of one side, a bounded number of which are open."""

from collections import OrderedDict
from types import TracebackType

from keepstep.errors import CouldNotLookError, DamagedCheckpointError
from keepstep.ops.tensor_source import DataFile, Side
from keepstep.storage.files import OpenFile
from keepstep.storage.plain import NotPlainError

# A checkpoint of a thousand ranks has more files than a process may open.
_MOST = 64


class DataReader:
    """The files of a side.

    Attributes:
        bytes_read: all bytes that were read.
    """

    def __init__(self, side: Side) -> None:
        self._side = side
        self._open: OrderedDict[int, OpenFile] = OrderedDict()
        self.bytes_read = 0

    def read_into(self, number: int, offset: int, target: memoryview) -> None:
        """Fill `target` from byte `offset` of a file on.

        Raises:
            DamagedCheckpointError: the file is no longer what it was, or ends before.
            CouldNotLookError: it cannot be read.
        """
        file = self._side.files[number]
        try:
            self._opened(number, file).read_into(offset, target)
        except (EOFError, NotPlainError) as error:
            raise DamagedCheckpointError(f"{file.path}: {error}; has somebody written to it just now?") from error
        except OSError as error:
            raise CouldNotLookError(f"cannot read {file.path}: {error}") from error
        self.bytes_read += len(target)

    def _opened(self, number: int, file: DataFile) -> OpenFile:
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        if len(self._open) >= _MOST:
            self._open.popitem(last=False)[1].close()
        self._open[number] = file.open()
        return self._open[number]

    def __enter__(self) -> "DataReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._open:
            self._open.popitem()[1].close()
