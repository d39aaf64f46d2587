"""What a safetensors export holds, from its headers alone. Nothing in a header is believed before the file has it."""

import json
import math
import os
import reprlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from keepstep.errors import CheckpointNotFoundError, CouldNotLookError, DamagedCheckpointError
from keepstep.ops.tensor_source import DataFile, Item, Side, local_file
from keepstep.plan import layout
from keepstep.plan.difference import Kind
from keepstep.plan.evidence import Digests
from keepstep.plan.pieces import Shard
from keepstep.plan.weight_files import DTYPES, INDEX_FILE
from keepstep.storage.index import ELEMENT_SIZES
from keepstep.storage.part import read_fully
from keepstep.storage.plain import NotPlainError, open_plain, read_plain

SUFFIX = ".safetensors"
_PREFIX = "model."
# The longest header that the format allows, in bytes, and the longest list of files that is read.
_MAX_HEADER = 100_000_000
_MAX_LIST = 64 * 1024 * 1024
_MAX_DIMS = 1024
_MAX_COUNT = (1 << 63) - 1
# Torch's names of dtypes by the format's. No reader of torch takes the last one.
_DTYPES = {name: dtype for dtype, name in DTYPES.items()} | {"F8_E8M0": "float8_e8m0fnu"}


class _HeaderError(ValueError):
    """A header that does not fit its file."""


def safetensors_side(path: Path) -> Side:
    """Look into an export: a file, or a folder of such files, which its index lists if it has one.

    Raises:
        CheckpointNotFoundError: there is none.
        DamagedCheckpointError: a header or an index is not of the format, or does not fit the files.
        CouldNotLookError: a file cannot be read.
    """
    files: list[DataFile] = []
    items: dict[str, Item] = {}
    places, notes = _files(path)
    for file in places:
        size, header, begin = _open(file)
        notes |= _notes(header.pop("__metadata__", None))
        for name, fields in header.items():
            key = _PREFIX + name
            if key in items:
                raise DamagedCheckpointError(f"{path}: {reprlib.repr(name)} is in two of its files; keep one of them")
            try:
                items[key] = _item(key, fields, len(files), begin, size - begin)
            except _HeaderError as error:
                raise DamagedCheckpointError(f"{file}: {reprlib.repr(name)} {error}; write the export anew") from None
        files.append(local_file(file, size, Digests(b"", 1, 1)))
    # A name that was left out because its tensor is written under another one.
    for name, kept in notes.items():
        item = items.get(_PREFIX + kept)
        if item is not None and name != "format":
            items.setdefault(_PREFIX + name, replace(item, kind=replace(item.kind, key=_PREFIX + name)))
    total = sum(file.size for file in files)
    return Side(str(path), "safetensors", None, None, total, None, tuple(files), items)


def names_in(file: Path) -> set[str]:
    """The tensors of one file, of which the header describes every byte.

    Raises:
        DamagedCheckpointError: the header is not of the format, or does not fit the file, which is cut off, say.
        CouldNotLookError: it cannot be read.
    """
    size, header, begin = _open(file)
    header.pop("__metadata__", None)
    end = begin
    for name, fields in header.items():
        try:
            item = _item(name, fields, 0, begin, size - begin)
        except _HeaderError as error:
            raise DamagedCheckpointError(f"{reprlib.repr(name)} {error}") from None
        end = max(end, item.shards[0].data + item.kind.size)
    if end != size:
        raise DamagedCheckpointError(f"it has {size} bytes, and its header speaks of {end}")
    return set(header)


def is_export(path: Path) -> bool:
    """Whether a path looks like an export."""
    return bool(_listed(path)) if path.is_dir() else path.name.endswith(SUFFIX) and path.is_file()


def _listed(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX) and not name.startswith("."))


def _notes(metadata: Any) -> dict[str, str]:
    """The entries of a metadata section that say a text of a text."""
    if not isinstance(metadata, dict):
        return {}
    return {name: kept for name, kept in metadata.items() if isinstance(kept, str)}


def _files(path: Path) -> tuple[list[Path], dict[str, str]]:
    """The files of an export, and what its index notes beside."""
    try:
        if not path.is_dir():
            return [path.resolve(strict=True)], {}  # who names a file may name it by a link
        if not os.path.lexists(path / INDEX_FILE):
            return [path / name for name in _listed(path)], {}
        index = json.loads(read_plain(path / INDEX_FILE, _MAX_LIST))
        names, notes = set(index["weight_map"].values()), _notes(index.get("metadata"))
        unsafe = [name for name in names if type(name) is not str or not layout.is_safe_file_name(name)]
        if unsafe:
            raise DamagedCheckpointError(f"{path / INDEX_FILE}: file name {reprlib.repr(unsafe[0])} is not allowed")
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(f"{path}: {error.strerror}") from error
    except OSError as error:
        raise CouldNotLookError(f"cannot look into {path}: {error}") from error
    except (NotPlainError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, DamagedCheckpointError):
            raise
        raise DamagedCheckpointError(f"{path / INDEX_FILE} is not readable: {reprlib.repr(str(error))}") from None
    return [path / name for name in sorted(names)], notes


def _open(file: Path) -> tuple[int, dict[str, Any], int]:
    """Size of a file, its header, and where the tensors begin."""
    try:
        descriptor = open_plain(file)
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{file} is missing, and the export's index names it") from None
    except NotPlainError as error:
        raise DamagedCheckpointError(f"{file}: {error}; give the folder that holds the file itself") from None
    except OSError as error:
        raise CouldNotLookError(f"cannot read {file}: {error}") from error
    try:
        size = os.fstat(descriptor).st_size
        head = bytearray(8)
        read_fully(descriptor, 0, memoryview(head))
        length = int.from_bytes(head, "little")
        if length > min(_MAX_HEADER, size - 8):
            raise _HeaderError(f"its header is said to have {length} bytes, the file has {size}")
        text = bytearray(length)
        read_fully(descriptor, 8, memoryview(text))
        header = json.loads(text, object_pairs_hook=_distinct)
        if not isinstance(header, dict):
            raise _HeaderError("its header is no mapping")
    except (EOFError, ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{file} is no safetensors file: {reprlib.repr(str(error))}") from None
    except OSError as error:
        raise CouldNotLookError(f"cannot read {file}: {error}") from error
    finally:
        os.close(descriptor)
    return size, header, 8 + length


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise _HeaderError("a name stands in it twice")
    return values


def _item(key: str, fields: Any, file: int, begin: int, room: int) -> Item:
    try:
        name, shape, (first, last) = fields["dtype"], tuple(fields["shape"]), fields["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise _HeaderError("lacks dtype, shape or place") from None
    if type(name) is not str or len(shape) > _MAX_DIMS:
        raise _HeaderError("has no dtype or too many dimensions")
    if any(type(number) is not int or not 0 <= number <= _MAX_COUNT for number in (*shape, first, last)):
        raise _HeaderError("has a number in its header that is no count")
    if not first <= last <= room:
        raise _HeaderError(f"is said to end at byte {last} of {room}")
    size, dtype = last - first, _DTYPES.get(name, name)
    if name in ELEMENT_SIZES:
        raise _HeaderError("has a dtype that is not of the format")
    if name not in _DTYPES:
        # A dtype of later days: it is compared byte by byte.
        return Item(Kind(key, dtype or "?", shape, size), 1, (Shard((0,), (size,), file, begin + first),))
    element = ELEMENT_SIZES[dtype]
    if math.prod(shape) * element != size:
        raise _HeaderError(f"is said to take {size} bytes, which its shape does not")
    return Item(Kind(key, dtype, shape, size), element, (Shard((0,) * len(shape), shape, file, begin + first),))
