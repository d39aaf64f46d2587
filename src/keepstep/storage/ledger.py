"""A ledger of the samples that each step consumed: one file for each rank, 4 bytes a sample and 20 bytes a step.

Layout of `.keepstep/ledger/rank_<r>.bin`: 8 bytes magic, 8 bytes number of samples in an epoch, then rows of
(step uint32, position uint64, count uint32, count indices uint32), little-endian. A position counts samples of all
ranks from 0; a row's samples stand at `position`, `position + 1`, ...
"""

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from keepstep.plan import layout

_MAGIC = b"KSLEDGE1"
_HEAD = struct.Struct("<8sQ")
_ROW = struct.Struct("<IQI")


class LedgerFormatError(ValueError):
    """The file is no ledger that this version reads."""


@dataclass(frozen=True)
class LedgerRow:
    """The samples of one rank in one step."""

    step: int
    position: int
    indices: npt.NDArray[np.uint32]


def ledger_folder(run: Path) -> Path:
    """Where a run's ledger lies."""
    return run / layout.KEEPSTEP_FOLDER / "ledger"


class LedgerFile:
    """One rank's ledger, appended to after each step.

    Args:
        run: the run's folder.
        rank: whose samples.
        length: samples in an epoch.
    """

    def __init__(self, run: Path, rank: int, length: int) -> None:
        folder = ledger_folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(folder / f"rank_{rank}.bin", flags, 0o666)
        if os.fstat(self._descriptor).st_size == 0:
            os.write(self._descriptor, _HEAD.pack(_MAGIC, length))

    def append(self, step: int, position: int, indices: Sequence[int]) -> None:
        """Note the samples of one step."""
        data = _ROW.pack(step, position, len(indices)) + np.asarray(indices, dtype="<u4").tobytes()
        os.write(self._descriptor, data)

    def sync(self) -> None:
        """Make what was noted durable: before a checkpoint that counts on it."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def rewind(run: Path, step: int) -> None:
    """Cut off, in the files of all ranks, what came after `step`: a resumed run does those steps again."""
    for path in sorted(ledger_folder(run).glob("rank_*.bin")):
        size = _HEAD.size
        for row in read_rows(path):
            if row.step > step:
                break
            size += _ROW.size + 4 * len(row.indices)
        if path.stat().st_size > size:
            os.truncate(path, size)


def read_length(path: Path) -> int:
    """Samples in an epoch. Raises LedgerFormatError when the file is no ledger."""
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or head[:8] != _MAGIC:
        raise LedgerFormatError(f"{path} is no ledger")
    return int(_HEAD.unpack(head)[1])


def read_rows(path: Path) -> Iterator[LedgerRow]:
    """The whole rows of one file; one that a crash cut short is left out."""
    read_length(path)
    with path.open("rb") as file:
        file.seek(_HEAD.size)
        while len(head := file.read(_ROW.size)) == _ROW.size:
            step, position, count = _ROW.unpack(head)
            data = file.read(4 * count)
            if len(data) < 4 * count:
                return
            yield LedgerRow(step, position, np.frombuffer(data, dtype="<u4"))
