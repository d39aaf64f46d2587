"""A checkpoint that is opened for reading: its metadata, its indexes, and whether the two agree."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from torch.distributed.checkpoint.metadata import Metadata

from keepstep.dcp.entries import Stored
from keepstep.dcp.metadata import parse_metadata, stored_keys
from keepstep.errors import DamagedCheckpointError
from keepstep.plan import layout
from keepstep.plan.blocks import runs_of
from keepstep.plan.manifest import Manifest
from keepstep.plan.resume import Condition
from keepstep.storage.blocks import VerifiedFile
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.index import IndexedFile, IndexFormatError, IndexItem, from_bytes
from keepstep.storage.survey import inspect
from keepstep.storage.verify import Damage


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
        folder: the checkpoint.
        manifest: its manifest.

    Raises:
        DamageFoundError: `.metadata` or an index is not as it was written, or they contradict each other.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.bytes_read = 0
        self.metadata: Metadata = parse_metadata(self._small(layout.METADATA), folder)
        self.files: dict[str, VerifiedFile] = {}
        self._closing = ExitStack()
        indexed = [file for name in sorted(manifest.files) if name.endswith(".index") for file in self._index(name)]
        self._indexed = {file.name: file for file in indexed}
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
            self.files[name] = self._closing.enter_context(VerifiedFile(self.folder, self._indexed[name]))
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
        try:
            data = (self.folder / name).read_bytes()
        except FileNotFoundError:
            raise DamageFoundError(Damage(name, "it is missing")) from None
        self.bytes_read += len(data)
        if digest_of_bytes(data) != self.manifest.files[name].digest:
            raise DamageFoundError(Damage(name, "its content has changed"))
        return data

    def _index(self, name: str) -> list[IndexedFile]:
        try:
            return from_bytes(self._small(name))
        except IndexFormatError as error:
            raise DamageFoundError(Damage(name, str(error))) from error

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
                text = f"{index.fqn} is said to lie where {', '.join(there) or 'nothing'} does"
                raise DamageFoundError(Damage(layout.METADATA, text))
            pieces.setdefault(index.fqn, []).append(Piece(place.relative_path, item))
        return pieces


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
