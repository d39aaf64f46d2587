"""A checkpoint that is opened for reading: its metadata, its indexes, and whether the two agree."""

import logging
import math
import operator
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from keepstep.dcp.entries import Stored
from keepstep.dcp.metadata import parse_metadata, stored_keys
from keepstep.errors import CouldNotLookError, DamagedCheckpointError
from keepstep.plan import layout
from keepstep.plan.blocks import runs_of
from keepstep.plan.manifest import Manifest
from keepstep.plan.resume import Condition
from keepstep.storage.blocks import VerifiedFile
from keepstep.storage.digest import digest_of_blocks, digest_of_bytes
from keepstep.storage.files import Files, as_files
from keepstep.storage.index import MAX_INDEX, IndexedFile, IndexFormatError, IndexItem, from_bytes
from keepstep.storage.plain import NotPlainError
from keepstep.storage.survey import inspect
from keepstep.storage.verify import Damage

logger = logging.getLogger("keepstep")

_SHOWN = 3


class DamageFoundError(ValueError):
    """A file of the checkpoint is not as it was written."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(str(damage))
        self.damage = damage


@dataclass(frozen=True)
class Piece:
    """A stored shard of a tensor, or a stored value: in which file, and where."""

    file: str
    item: IndexItem


class Source:
    """A committed checkpoint, read only as far as somebody asks, and every byte of that compared with its digest.

    Args:
        place: the checkpoint, a folder or files elsewhere.
        manifest: its manifest.

    Raises:
        DamageFoundError: `.metadata` or an index is not as it was written, or they contradict each other.
        UnsupportedStateError: `.metadata` asks for a class that no checkpoint needs.
        CouldNotLookError: a file cannot be read.
    """

    def __init__(self, place: Path | Files, manifest: Manifest) -> None:
        self.place, self.manifest = as_files(place), manifest
        self.bytes_read = 0
        self.metadata = self._metadata()
        self.files: dict[str, VerifiedFile] = {}
        self._closing = ExitStack()
        indexed = [file for name in sorted(manifest.files) if name.endswith(".index") for file in self._index(name)]
        self._indexed = {file.name: file for file in indexed}
        if len(self._indexed) != len(indexed):
            raise DamageFoundError(Damage(layout.MANIFEST, "two of its indexes list the same file"))
        self.pieces = self._match()

    def stored(self) -> dict[str, Stored]:
        """All keys with shape and dtype."""
        return stored_keys(self.metadata)

    def piece_of(self, key: str) -> Piece:
        """The one place of a value. Raises DamageFoundError when it has none."""
        if key not in self.pieces:
            raise DamageFoundError(Damage(layout.METADATA, f"{key} is listed and lies nowhere"))
        return self.pieces[key][0]

    def open(self, name: str) -> VerifiedFile:
        """A shard file. It stays open until `close`."""
        if name not in self.files:
            self.files[name] = self._closing.enter_context(VerifiedFile(self.place, self._indexed[name]))
        return self.files[name]

    def blocks(self) -> dict[str, int]:
        """The number of blocks of each shard file."""
        return {name: file.blocks for name, file in self._indexed.items()}

    def touched_runs(self) -> dict[str, list[tuple[int, int]]]:
        """The blocks of each shard file that this process has read and found good, in runs."""
        return {name: runs_of(file.touched, 1) for name, file in self.files.items()}

    def total_read(self) -> int:
        """Bytes that this process has read of the checkpoint."""
        return self.bytes_read + sum(file.bytes_read for file in self.files.values())

    def close(self) -> None:
        """Close all files."""
        self._closing.close()

    def __enter__(self) -> "Source":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _small(self, name: str) -> bytes:
        """A file that is read whole. What differs is read a second time, from the disk, which has the last word."""
        record, where = self.manifest.files.get(name), f"{self.place}/{name}"
        if record is None:
            raise DamageFoundError(Damage(layout.MANIFEST, f"it does not list {name}"))
        try:
            data = self.place.read(name, min(record.size, MAX_INDEX))
            self.bytes_read += len(data)
            if digest_of_bytes(data) == record.digest:
                return data
            data = self.place.reread(name, len(data))
        except FileNotFoundError:
            raise DamageFoundError(Damage(name, "it is missing")) from None
        except NotPlainError as error:
            raise DamageFoundError(Damage(name, str(error))) from error
        except OSError as error:
            raise CouldNotLookError(f"cannot read {where}: {error}") from error
        if len(data) != record.size or digest_of_bytes(data) != record.digest:
            raise DamageFoundError(Damage(name, "its content has changed"))
        logger.warning("%s was read wrong once, then right from the disk: is the memory sound?", where)
        return data

    def _metadata(self) -> Metadata:
        data = self._small(layout.METADATA)
        try:
            return parse_metadata(data, self.place)
        except DamagedCheckpointError as error:
            raise DamageFoundError(Damage(layout.METADATA, str(error))) from error

    def _index(self, name: str) -> list[IndexedFile]:
        try:
            files = from_bytes(self._small(name))
        except IndexFormatError as error:
            raise DamageFoundError(Damage(name, str(error))) from error
        for file in files:
            record = self.manifest.files.get(file.name)
            if record is None or (file.size, digest_of_blocks(file.digests)) != (record.size, record.digest):
                raise DamageFoundError(Damage(name, f"what it says of {file.name} is not what the manifest says"))
        return files

    def _match(self) -> dict[str, list[Piece]]:
        """Key to its pieces. `.metadata` and the indexes were written apart: each place must be the same in both."""
        found: dict[tuple[str, str, int], IndexItem] = {
            (item.key, file.name, item.offset): item for file in self._indexed.values() for item in file.items
        }
        pieces: dict[str, list[Piece]] = {}
        for index, place in self.metadata.storage_data.items():
            item = found.get((index.fqn, place.relative_path, place.offset))
            at = tuple(index.offset or ())
            if item is None or item.length != place.length or (item.dtype and item.at != at):
                there = [i.key for (_, name, o), i in found.items() if (name, o) == (place.relative_path, place.offset)]
                text = f"{index.fqn} is said to lie where {', '.join(there[:_SHOWN]) or 'nothing'} does"
                raise DamageFoundError(Damage(layout.METADATA, text, (index.fqn,)))
            pieces.setdefault(index.fqn, []).append(Piece(place.relative_path, item))
        for key, what in self.metadata.state_dict_metadata.items():
            if problem := _misfit(what, pieces.get(key, ())):
                raise DamageFoundError(Damage(layout.METADATA, f"{key} {problem}", (key,)))
        return pieces


def _misfit(what: Any, pieces: Sequence[Piece]) -> str:
    """What is wrong with the pieces of a key; empty when nothing is. Memory is made for a shape only if it is there."""
    if not pieces:
        return "is listed and lies nowhere"
    if not isinstance(what, TensorStorageMetadata):
        return "is a value, and lies where a tensor does" if pieces[0].item.dtype else ""
    whole, dtype = tuple(what.size), str(what.properties.dtype).removeprefix("torch.")
    elements = 0
    for piece in pieces:
        item = piece.item
        if item.dtype != dtype:
            return f"is of {dtype}, and lies where {item.dtype or 'a value'} does"
        if len(item.shape) != len(whole) or any(map(operator.gt, map(operator.add, item.at, item.shape), whole)):
            return f"has a shard outside of its shape {whole}"
        elements += math.prod(item.shape)
    return "" if elements == math.prod(whole) else f"has {elements} elements, not those of its shape {whole}"


def open_source(folder: Path) -> Source:
    """Open a complete checkpoint.

    Raises:
        DamagedCheckpointError: it is not complete, or its metadata is not as it was written.
    """
    found = inspect(folder, layout.step_of(folder.name) or 0)
    if found.manifest is None or found.found.condition is not Condition.COMPLETE:
        raise DamagedCheckpointError(f"{folder} is no complete checkpoint: {found.found.problem}")
    try:
        return Source(folder, found.manifest)
    except DamageFoundError as error:
        raise DamagedCheckpointError(f"{folder} is damaged: {error}") from error
