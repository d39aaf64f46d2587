"""What a checkpoint or an export holds and where it lies, from indexes and headers alone: no model, no unpickling."""

import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from keepstep.storage.files import Files, LocalFiles, OpenFile, open_local
from keepstep.storage.index import ELEMENT_SIZES, MAX_INDEX, IndexedFile, IndexFormatError, IndexItem, from_bytes
from keepstep.storage.plain import NotPlainError
from keepstep.storage.run_record import read_record


@dataclass(frozen=True)
class DataFile:
    """A file that holds tensors.

    Attributes:
        name: of the file.
        path: where it lies, for people.
        size: bytes.
        digests: of its blocks, where there are some.
        open: opens it. Raises NotPlainError or OSError.
    """

    name: str
    path: str
    size: int
    digests: Digests
    open: Callable[[], OpenFile] = field(compare=False)


def local_file(path: Path, size: int, digests: Digests) -> DataFile:
    """A file of this machine."""
    return DataFile(path.name, str(path), size, digests, partial(open_local, path))


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
        is_far: whether each read waits for a network.
    """

    path: str
    form: str
    step: int | None
    world_size: int | None
    size: int
    record: dict[str, Any] | None
    files: tuple[DataFile, ...]
    items: dict[str, Item]
    is_far: bool = False


def checkpoint_side(path: Path) -> Side:
    """Look into a committed checkpoint.

    Raises:
        CheckpointNotFoundError: it was not committed.
        DamagedCheckpointError: a file of it is missing, or an index is not as it was written.
        CouldNotLookError: it cannot be read.
    """
    manifest = committed(path)

    def locate(name: str, size: int, digests: Digests) -> DataFile:
        return local_file(path / name, size, digests)

    return side_of(LocalFiles(path), manifest, read_record(path), locate)


def side_of(
    files: Files,
    manifest: Manifest,
    record: dict[str, Any],
    locate: Callable[[str, int, Digests], DataFile],
) -> Side:
    """Look into a checkpoint, wherever it lies: its indexes are read.

    Args:
        files: the checkpoint. `str` of it is what a person is told.
        manifest, record: its own.
        locate: the file of a name, size and digests.

    Raises as `checkpoint_side`.
    """
    indexes = [
        file for name in sorted(manifest.files) if name.endswith(".index") for file in _index(files, manifest, name)
    ]
    if len({file.name for file in indexes}) != len(indexes):
        raise DamagedCheckpointError(f"{files} is damaged: two of its indexes list the same file")
    return Side(
        path=str(files),
        form="checkpoint",
        step=manifest.step,
        world_size=manifest.world_size,
        size=manifest.size,
        record=record,
        files=tuple(locate(f.name, f.size, Digests(f.digests, BLOCK_SIZE, DIGEST_SIZE)) for f in indexes),
        items=_items(str(files), indexes),
    )


def committed(path: Path) -> Manifest:
    """The manifest of a checkpoint whose files are there, with their sizes. Raises as `checkpoint_side`."""
    found = open_checkpoint(path)
    if found.manifest is None and found.found.condition is Condition.INCOMPLETE:
        raise CheckpointNotFoundError(f"{path}: no committed checkpoint ({found.found.problem}); see keepstep ls")
    if found.manifest is None or found.found.condition is not Condition.COMPLETE:
        raise DamagedCheckpointError(f"{path} cannot be compared: {found.found.problem}; see keepstep verify {path}")
    return found.manifest


def _index(files: Files, manifest: Manifest, name: str) -> list[IndexedFile]:
    """The shard files of one rank. Its digests stand for the bytes, so they must be the manifest's."""
    record, problem = manifest.files[name], "its content has changed"
    try:
        data = files.read(name, min(record.size, MAX_INDEX))
        if len(data) == record.size and digest_of_bytes(data) == record.digest:
            found = from_bytes(data)
            wrong = [file.name for file in found if not _agrees(file, manifest)]
            if not wrong:
                return found
            problem = f"what it says of {wrong[0]} is not what the manifest says"
    except (NotPlainError, IndexFormatError, FileNotFoundError) as error:
        problem = str(error)
    except OSError as error:
        raise CouldNotLookError(f"cannot read {files}/{name}: {error}") from error
    raise DamagedCheckpointError(f"{files} is damaged: {name}: {problem}; see keepstep verify {files}")


def _agrees(file: IndexedFile, manifest: Manifest) -> bool:
    record = manifest.files.get(file.name)
    return record is not None and (file.size, digest_of_blocks(file.digests)) == (record.size, record.digest)


def _items(path: str, indexes: Sequence[IndexedFile]) -> dict[str, Item]:
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
