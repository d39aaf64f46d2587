"""Which reads go together: many small ones in one, a large one in several."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from keepstep.storage.blocks import VerifiedFile
from keepstep.storage.digest import BLOCK_SIZE

# Smaller reads are done together with their neighbours.
_SMALL = 64 * 1024
# Neighbours: no more than this lies between them, and all together are no longer than a batch.
_GAP = 2 * BLOCK_SIZE
_BATCH = 1024 * 1024
# A longer read is cut, so that several threads share it.
_PIECE = 4 * 1024 * 1024


@dataclass(frozen=True)
class Read:
    """Bytes of a file, and where they go: into `target`, or to what `then` does with the file."""

    file: str
    offset: int
    target: memoryview
    then: Callable[[VerifiedFile], None] | None = None


def batches(reads: Sequence[Read]) -> Iterator[list[Read]]:
    """Put reads of one file into batches, each for one thread."""
    batch: list[Read] = []
    begin = end = 0
    for read in sorted(reads, key=lambda one: one.offset):
        if read.then is not None:
            yield [read]
            continue
        size = len(read.target)
        if not size:
            continue
        if size >= _SMALL:
            yield from ([part] for part in _cut(read))
            continue
        stop = read.offset + size
        if batch and (read.offset - end > _GAP or stop - begin > _BATCH):
            yield batch
            batch = []
        if not batch:
            begin = read.offset
            end = stop
        batch.append(read)
        end = max(end, stop)
    if batch:
        yield batch


def _cut(read: Read) -> Iterator[Read]:
    """Cut at block boundaries, so that no block is read twice."""
    at, end = read.offset, read.offset + len(read.target)
    while at < end:
        stop = min(end, (at + _PIECE) // BLOCK_SIZE * BLOCK_SIZE)
        yield Read(read.file, at, read.target[at - read.offset : stop - read.offset])
        at = stop
