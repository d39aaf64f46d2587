"""`_index.jsonl`: a head and a line for each part. A checkpoint knows how long it was, and the digest of that much."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep.errors import DamagedOutputsError
from keepstep.plan.outputs import INDEX, Part
from keepstep.plan.shards import Share
from keepstep.storage.digest import BlockDigester, digest_of_blocks

_VERSION = 1
_PIECE = 1 << 20


@dataclass(frozen=True)
class Head:
    """Whose outputs lie in a folder.

    Attributes:
        id: of the run of the job, made at its first start.
        format: of its parts.
        owner: the folder of the job's checkpoints at that start.
        share: of the input; None for all of it.
    """

    id: str
    format: str
    owner: str
    share: Share | None = None

    def to_row(self) -> dict[str, Any]:
        """As the first line of the index has it."""
        row = {"outputs": _VERSION, "id": self.id, "format": self.format, "owner": self.owner}
        return row if self.share is None else row | {"shard": self.share.to_row()}


@dataclass(frozen=True)
class IndexState:
    """How much of an index counts: its first `bytes` bytes, which have this digest."""

    bytes: int
    digest: str


class IndexFile:
    """Appended to by the main process. What lies behind the end that it was opened at is written over.

    Args:
        folder: of the parts.
        state: how much of what is there counts; None for a new index.
    """

    def __init__(self, folder: Path, state: IndexState | None) -> None:
        self._path = folder / INDEX
        self._digester = BlockDigester()
        self.bytes = 0
        if state is not None:
            for piece in _pieces(self._path, state.bytes):
                self._digester.update(piece)
            self.bytes = state.bytes

    @property
    def state(self) -> IndexState:
        """What a checkpoint keeps."""
        return IndexState(self.bytes, digest_of_blocks(self._digester.finish()))

    def begin(self, head: Head) -> None:
        """Write the first line of a new index."""
        self._append(json.dumps(head.to_row()) + "\n")

    def append(self, parts: Sequence[Part]) -> None:
        """Add parts; they are on disk when this returns."""
        self._append("".join(json.dumps(part.to_row()) + "\n" for part in parts))

    def cut(self) -> None:
        """Cut off what lies behind the end."""
        if self._path.stat().st_size > self.bytes:
            self._append("")

    def _append(self, text: str) -> None:
        data = text.encode()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            # An append that failed half-way has left a piece of a line.
            os.ftruncate(descriptor, self.bytes)
            view, at = memoryview(data), self.bytes
            while view:
                written = os.pwrite(descriptor, view, at)
                view, at = view[written:], at + written
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._digester.update(data)
        self.bytes += len(data)


def read_head(folder: Path) -> Head | None:
    """Whose outputs lie in a folder; None where it has no index, or an empty one.

    Raises:
        DamagedOutputsError: the index is none.
    """
    try:
        with (folder / INDEX).open("rb") as file:
            line = file.readline(_PIECE)
    except FileNotFoundError:
        return None
    if not line.endswith(b"\n"):
        return None  # a process was killed before it had written the first line
    try:
        row = json.loads(line)
        if row["outputs"] > _VERSION:
            raise DamagedOutputsError(f"{folder / INDEX} was written by a newer keepstep; update this one")
        share = Share.from_row(row["shard"]) if "shard" in row else None
        return Head(str(row["id"]), str(row["format"]), str(row["owner"]), share)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, DamagedOutputsError):
            raise
        raise DamagedOutputsError(f"{folder / INDEX} is no index of outputs") from error


def read_parts(folder: Path, state: IndexState | None = None) -> list[Part]:
    """The parts that an index lists.

    Args:
        folder: of the parts.
        state: how much of it counts, and the digest of that; None for all whole lines.

    Raises:
        DamagedOutputsError: it is shorter, or another one.
    """
    path = folder / INDEX
    try:
        length = path.stat().st_size
        data = b"".join(_pieces(path, length if state is None else state.bytes))
    except FileNotFoundError:
        raise DamagedOutputsError(f"{path} is gone") from None
    if state is not None:
        digester = BlockDigester()
        digester.update(data)
        if length < state.bytes or digest_of_blocks(digester.finish()) != state.digest:
            raise DamagedOutputsError(f"{path} is not what it was when the checkpoint was saved ({state.bytes} bytes)")
    lines = data.split(b"\n")[1:-1]
    try:
        return [Part.from_row(json.loads(line)) for line in lines]
    except (ValueError, AttributeError) as error:
        raise DamagedOutputsError(f"{path}: {error}") from error


def _pieces(path: Path, count: int) -> list[bytes]:
    pieces = []
    with path.open("rb") as file:
        while count and (piece := file.read(min(count, _PIECE))):
            pieces.append(piece)
            count -= len(piece)
    return pieces
