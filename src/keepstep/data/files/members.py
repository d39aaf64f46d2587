"""Finds the samples of a tar file in one pass over its headers."""

import os
import tarfile
from collections.abc import Iterator

import numpy as np

from keepstep.data.files.lines import refuse_compressed
from keepstep.errors import DataError
from keepstep.storage.file_index import Arrays

# Columns of `members`.
_OFFSET, SIZE, NAME_END = range(3)


def split_name(name: str) -> tuple[str, str]:
    """Key and field of a member: `a/b.c.txt` belongs to the sample `a/b`, in its field `c.txt`."""
    folder, slash, base = name.rpartition("/")
    key, _, field = base.partition(".")
    return folder + slash + key, field


def find_members(path: str) -> Arrays:
    """Where the members of a tar file lie, and which of them make one sample: neighbours with the same key.

    Returns:
        `first`: number of the first member of each sample, and last their count. `members`: for each its offset and
        size in bytes, and the end of its name in `names`. `names`: all names, as UTF-8, one after the other.

    Raises:
        DataError: the file is compressed, damaged or no tar file, or a sample has a field twice.
        OSError: it cannot be read.
    """
    refuse_compressed(path, "unpack it to a plain .tar")
    first: list[int] = []
    members: list[tuple[int, int, int]] = []
    names = bytearray()
    before, fields = None, set[str]()
    size = os.stat(path).st_size
    for member in _members(path):
        key, field = split_name(member.name)
        if member.offset_data + member.size > size:
            raise DataError(f"{path}: ends before its member {member.name} does")
        if key != before:
            first.append(len(members))
            before, fields = key, set()
        if field in fields:
            raise DataError(f"{path}: the sample {key} has the field {field!r} twice")
        fields.add(field)
        names += member.name.encode("utf-8", "surrogateescape")
        members.append((member.offset_data, member.size, len(names)))
    return {
        "first": np.array([*first, len(members)], dtype=np.int64),
        "members": np.array(members, dtype=np.int64).reshape(-1, 3),
        "names": np.frombuffer(bytes(names), dtype=np.uint8),
    }


def _members(path: str) -> Iterator[tarfile.TarInfo]:
    if not os.path.getsize(path):
        return
    try:
        with tarfile.open(path, "r:") as archive:
            while (member := archive.next()) is not None:
                vars(archive)["members"] = []  # it would keep all of them
                if member.issparse() or member.islnk() or member.issym():
                    raise DataError(f"{path}: {member.name} is a link or sparse; write its bytes into the archive")
                if member.isfile():
                    yield member
            end = archive.offset
    except tarfile.TarError as error:
        raise DataError(f"{path}: no plain tar file, or a damaged one: {error}") from error
    # tarfile takes a cut or damaged header for the end, and would lose what comes behind it without a word.
    with open(path, "rb") as file:
        file.seek(end)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise DataError(f"{path}: has no end mark at byte {end}: it is cut short, or damaged there")
