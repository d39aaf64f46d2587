"""Writes this rank's part of a checkpoint: one shard file and the index of its digests."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from keepstep.dcp.fragments import Fragment
from keepstep.dcp.image import LiveImage
from keepstep.plan import layout
from keepstep.plan.manifest import FileRecord
from keepstep.storage.digest import digest_of_blocks
from keepstep.storage.local import DurableFile
from keepstep.storage.writer import Writer


@dataclass(frozen=True)
class Written:
    """What a rank tells the main process after it has written.

    Attributes:
        files: size and digest of each of its files.
        fragment: its part of `.metadata`, if that is not the one of its last save.
        seconds: what took how long.
        copied: bytes of other ranks' files that it has written a copy of.
    """

    files: dict[str, FileRecord] = field(default_factory=dict)
    fragment: Fragment | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    copied: int = 0

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(record.size for record in self.files.values())


def write_shard(
    folder: Path,
    image: LiveImage,
    writer: Writer,
    fragment: Fragment | None = None,
) -> Written:
    """Write and sync this rank's shard file and its index.

    Args:
        folder: the checkpoint under way.
        image: the content.
        writer: writes it.
        fragment: told to the main process.
    """
    shard = image.shard
    image.await_copies()
    done = writer.write(folder / shard.name, image)
    started = time.monotonic()
    name = layout.index_name(shard.rank)
    files = {
        shard.name: FileRecord(done.size, digest_of_blocks(done.digests)),
        name: write_file(folder / name, shard.index_header + done.digests),
    }
    seconds = {"write": done.write_seconds, "sync": done.sync_seconds, "index": time.monotonic() - started}
    return Written(files, fragment, seconds)


def write_file(path: Path, data: bytes) -> FileRecord:
    """Write a whole file durably."""
    with DurableFile(path) as file:
        file.write(data)
    return FileRecord(file.size, digest_of_blocks(file.digests))
