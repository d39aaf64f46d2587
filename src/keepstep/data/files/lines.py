"""Finds the lines of a text file in one pass."""

import os

import numpy as np
import numpy.typing as npt

from keepstep.errors import DataError
from keepstep.storage.file_index import Arrays

Numbers = npt.NDArray[np.int64]

_PIECE = 8 * 1024 * 1024
_NEWLINE = 10
_SPACE = np.zeros(256, dtype=bool)
_SPACE[[9, 10, 11, 12, 13, 32]] = True
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


def refuse_compressed(path: str, remedy: str) -> None:
    """Raise DataError for a file that is compressed as a whole."""
    with open(path, "rb") as file:
        begin = file.read(8)
    for magic, name in _COMPRESSED.items():
        if begin.startswith(magic):
            raise DataError(
                f"{path}: is compressed ({name}): a record in it is reached only by unpacking all before it; {remedy}"
            )


def find_lines(path: str) -> Arrays:
    """Where the lines that are not blank begin.

    Returns:
        `records`: in its first row their offsets in bytes, and last the end of the file. A second row is there when
        some line is blank: the numbers of the lines, from 0.

    Raises:
        DataError: the file is compressed.
        OSError: it cannot be read.
    """
    refuse_compressed(path, "unpack it, or write Parquet, which is compressed in parts")
    starts: list[Numbers] = []
    lines: list[Numbers] | None = None  # while they are the numbers of the records
    number = 0
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size, begin, length = os.fstat(source).st_size, 0, _PIECE
        while begin < size:
            data = np.frombuffer(os.pread(source, length, begin), np.uint8)
            if not len(data):
                break
            ends = np.flatnonzero(data == _NEWLINE)
            if not len(ends) and begin + len(data) < size:
                length *= 2  # a line that is longer than what was read
                continue
            if begin + len(data) >= size and data[-1] != _NEWLINE:
                ends = np.append(ends, len(data) - 1)  # the last line has no newline
            first = np.concatenate(([0], ends[:-1] + 1))
            full = _not_blank(data, first, ends)
            if lines is None and len(full) < len(ends):
                lines = [np.arange(number)]
            if lines is not None:
                lines.append(full + number)
            starts.append(first[full] + begin)
            number += len(ends)
            begin, length = begin + int(ends[-1]) + 1, _PIECE
    finally:
        os.close(source)
    offsets = np.concatenate([*starts, np.array([size])])
    if lines is None:
        return {"records": offsets.reshape(1, -1)}
    return {"records": np.stack([offsets, np.concatenate([*lines, np.array([number])])])}


def _not_blank(
    data: npt.NDArray[np.uint8],
    first: Numbers,
    ends: Numbers,
) -> Numbers:
    """The numbers of the lines that hold more than white space. Few begin with any: only those are looked at whole."""
    is_blank = _SPACE[data[first]]
    for number in np.flatnonzero(is_blank):
        is_blank[number] = _SPACE[data[first[number] : ends[number] + 1]].all()
    return np.flatnonzero(~is_blank)
