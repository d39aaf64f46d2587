"""What a checkpoint or an export holds and where it lies, from indexes and headers alone: no model, no unpickling."""

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep.errors import CheckpointNotFoundError, CouldNotLookError, DamagedCheckpointError
from keepstep.ops.found import open_checkpoint
from keepstep.plan.difference import Kind
from keepstep.plan.evidence import Digests
from keepstep.plan.manifest import Manifest
from keepstep.plan.pieces import Shard
from keepstep.plan.resume import Condition
from keepstep.storage.digest import BLOCK_SIZE, DIGEST_SIZE, digest_of_blocks, digest_of_bytes
from keepstep.storage.index import ELEMENT_SIZES, MAX_INDEX, IndexedFile, IndexFormatError, IndexItem, from_bytes
from keepstep.storage.plain import NotPlainError, read_plain
from keepstep.storage.run_record import read_record


@dataclass(frozen=True)
class DataFile:
    """A file that holds tensors: its size in bytes, and the digests of its blocks where there are some."""

    path: Path
    size: int
    digests: Digests


@dataclass(frozen=True)
class Item:
    """A tensor, or a Python value (its bytes are one shard, frame behind it included).

    Attributes:
        kind: key, dtype, shape and size.
        element: bytes of an element.
        shards: boxes of the tensor, in the order of their places.
    """

    kind: Kind
    element: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        path: what was asked for.
        form: `checkpoint` or `safetensors`.
        step, world_size: of a checkpoint.
        size: bytes of all its files.
        record: the run record of a checkpoint; None of an export, which has none.
        files: what the shards' `file` counts.
        items: by key. The tensors of an export are called `model.<name>`, as in a checkpoint.
    """

    path: str
    form: str
    step: int | None
    world_size: int | None
    size: int
    record: dict[str, Any] | None
    files: tuple[DataFile, ...]
    items: dict[str, Item]


def checkpoint_side(path: Path) -> Side:
    """Look into a committed checkpoint.

    Raises:
        CheckpointNotFoundError: it was not committed.
        DamagedCheckpointError: a file of it is missing, or an index is not as it was written.
        CouldNotLookError: it cannot be read.
    """
    manifest = committed(path)
    indexes = [
        file for name in sorted(manifest.files) if name.endswith(".index") for file in _index(path, manifest, name)
    ]
    if len({file.name for file in indexes}) != len(indexes):
        raise DamagedCheckpointError(f"{path} is damaged: two of its indexes list the same file")
    files = tuple(DataFile(path / f.name, f.size, Digests(f.digests, BLOCK_SIZE, DIGEST_SIZE)) for f in indexes)
    return Side(
        path=str(path),
        form="checkpoint",
        step=manifest.step,
        world_size=manifest.world_size,
        size=manifest.size,
        record=read_record(path),
        files=files,
        items=_items(path, indexes),
    )


def committed(path: Path) -> Manifest:
    """The manifest of a checkpoint whose files are there, with their sizes. Raises as `checkpoint_side`."""
    found = open_checkpoint(path)
    if found.manifest is None and found.found.condition is Condition.INCOMPLETE:
        raise CheckpointNotFoundError(f"{path}: no committed checkpoint ({found.found.problem}); see keepstep ls")
    if found.manifest is None or found.found.condition is not Condition.COMPLETE:
        raise DamagedCheckpointError(f"{path} cannot be compared: {found.found.problem}; see keepstep verify {path}")
    return found.manifest


def _index(path: Path, manifest: Manifest, name: str) -> list[IndexedFile]:
    """The shard files of one rank. Its digests stand for the bytes, so they must be the manifest's."""
    record, problem = manifest.files[name], "its content has changed"
    try:
        data = read_plain(path / name, min(record.size, MAX_INDEX))
        if len(data) == record.size and digest_of_bytes(data) == record.digest:
            files = from_bytes(data)
            wrong = [file.name for file in files if not _agrees(file, manifest)]
            if not wrong:
                return files
            problem = f"what it says of {wrong[0]} is not what the manifest says"
    except (NotPlainError, IndexFormatError, FileNotFoundError) as error:
        problem = str(error)
    except OSError as error:
        raise CouldNotLookError(f"cannot read {path / name}: {error}") from error
    raise DamagedCheckpointError(f"{path} is damaged: {name}: {problem}; see keepstep verify {path}")


def _agrees(file: IndexedFile, manifest: Manifest) -> bool:
    record = manifest.files.get(file.name)
    return record is not None and (file.size, digest_of_blocks(file.digests)) == (record.size, record.digest)


def _items(path: Path, indexes: Sequence[IndexedFile]) -> dict[str, Item]:
    places: dict[str, list[tuple[int, IndexItem]]] = {}
    for number, file in enumerate(indexes):
        for one in file.items:
            places.setdefault(one.key, []).append((number, one))
    items = {}
    for key, pieces in places.items():
        item = _tensor(key, pieces) if pieces[0][1].dtype else _value(key, pieces)
        if item is None:
            raise DamagedCheckpointError(f"{path} is damaged: the shards of {reprlib.repr(key)} do not make one tensor")
        items[key] = item
    return items


def _tensor(key: str, pieces: Sequence[tuple[int, IndexItem]]) -> Item | None:
    """None when the shards do not add up to a tensor."""
    dtype, dims = pieces[0][1].dtype, len(pieces[0][1].shape)
    if any((one.dtype, len(one.shape)) != (dtype, dims) for _, one in pieces):
        return None
    ends = [[at + length for at, length in zip(one.at, one.shape, strict=True)] for _, one in pieces]
    shape = tuple(map(max, zip(*ends, strict=True)))
    if sum(math.prod(one.shape) for _, one in pieces) != math.prod(shape):
        return None
    element = ELEMENT_SIZES[dtype]
    shards = sorted((Shard(one.at, one.shape, number, one.data) for number, one in pieces), key=lambda one: one.at)
    return Item(Kind(key, dtype, shape, element * math.prod(shape)), element, tuple(shards))


def _value(key: str, pieces: Sequence[tuple[int, IndexItem]]) -> Item | None:
    if len(pieces) != 1:
        return None
    number, one = pieces[0]
    size = one.offset + one.length - one.data
    return Item(Kind(key, "", (), size), 1, (Shard((0,), (size,), number, one.data),))
