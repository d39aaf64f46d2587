"""Reads parts of a file and compares every block that they touch with its digest, in the one pass that reads."""

import logging
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from keepstep.storage.digest import BLOCK_SIZE, DIGEST_SIZE, block_digests
from keepstep.storage.files import Files, as_files
from keepstep.storage.index import IndexedFile

logger = logging.getLogger("keepstep")

# Read and digested while it is in the processor's cache.
_PIECE = 512 * 1024
_SHOWN = 3
_LOOKED_AT = 100


class DamagedBlocksError(ValueError):
    """Blocks of a file are not as they were written. `blocks` are the numbers of those that were looked at."""

    def __init__(self, file: IndexedFile, blocks: list[int], problem: str = "") -> None:
        keys = sorted({key for block in blocks[:_LOOKED_AT] for key in file.items_at(block)})
        more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
        what = problem or f"its content has changed in {len(blocks)} blocks"
        super().__init__(f"{what} ({', '.join(keys[:_SHOWN])}{more})" if keys else what)
        self.keys = tuple(keys)
        self.file = file.name
        self.blocks = blocks


class VerifiedFile:
    """A shard file that is read with its index at hand. Several threads may read at once.

    Attributes:
        touched: for each block 1 if it was read and found to be as it was written.
        bytes_read: all bytes that were read from the file.
    """

    def __init__(self, place: Path | Files, indexed: IndexedFile) -> None:
        files = as_files(place)
        self.indexed = indexed
        self._where = f"{files}/{indexed.name}"
        self.touched = bytearray(indexed.blocks)
        self.bytes_read = 0
        self._file = files.open(indexed.name)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` (bytes) from `offset` on.

        Whole blocks are read to where they belong and digested there; only the ends go through a scratch block.

        Raises:
            DamagedBlocksError: a block that holds some of these bytes is not as it was written.
            OSError: the file cannot be read.
        """
        done, scratch = 0, memoryview(b"")
        while done < len(target):
            block, inside = divmod(offset + done, BLOCK_SIZE)
            left = len(target) - done
            whole = min(left, _PIECE) // BLOCK_SIZE
            if inside == 0 and whole:
                piece = target[done : done + whole * BLOCK_SIZE]
                self._read(block, piece)
                done += len(piece)
                continue
            size = min(BLOCK_SIZE, self.indexed.size - block * BLOCK_SIZE)
            if size <= inside:
                raise DamagedBlocksError(self.indexed, [block], f"it ends before byte {offset + len(target)}")
            scratch = scratch or memoryview(bytearray(BLOCK_SIZE))
            self._read(block, scratch[:size])
            count = min(left, size - inside)
            target[done : done + count] = scratch[inside : inside + count]
            done += count

    def read_many(self, parts: Sequence[tuple[int, memoryview]]) -> None:
        """Fill several targets that lie close together: (offset, target) each, in the order of offsets.

        All from the first to the last is read once. Raises as `read_into`.
        """
        begin = parts[0][0] // BLOCK_SIZE * BLOCK_SIZE
        end = max(offset + len(target) for offset, target in parts)
        if end > self.indexed.size:
            raise DamagedBlocksError(self.indexed, [self.indexed.blocks - 1], f"it ends before byte {end}")
        end = min(-(-end // BLOCK_SIZE) * BLOCK_SIZE, self.indexed.size)
        scratch = memoryview(bytearray(end - begin))
        for at in range(begin, end, _PIECE):
            self._read(at // BLOCK_SIZE, scratch[at - begin : min(at + _PIECE, end) - begin])
        for offset, target in parts:
            target[:] = scratch[offset - begin : offset - begin + len(target)]

    def verify(self, first: int, last: int) -> None:
        """Read and compare the blocks `first` to `last` (exclusive). Raises as `read_into`."""
        buffer = memoryview(bytearray(min(_PIECE, (last - first) * BLOCK_SIZE)))
        while first < last:
            count = min(len(buffer) // BLOCK_SIZE, last - first)
            end = min((first + count) * BLOCK_SIZE, self.indexed.size)
            self._read(first, buffer[: end - first * BLOCK_SIZE])
            first += count

    def _read(self, first: int, target: memoryview) -> None:
        try:
            self._file.read_into(first * BLOCK_SIZE, target)
        except EOFError as error:
            raise DamagedBlocksError(self.indexed, [first], str(error)) from error
        self.bytes_read += len(target)
        digests = self.indexed.digests
        blocks = -(-len(target) // BLOCK_SIZE)
        own = digests[first * DIGEST_SIZE : (first + blocks) * DIGEST_SIZE]
        found = block_digests(target)
        if found != own and (again := self._file.reread(first * BLOCK_SIZE, len(target))):
            # What was read may have been bad in memory only: the disk has the last word.
            target[: len(again)] = again
            found = block_digests(target)
            if found == own:
                logger.warning("%s was read wrong once, then right from the disk: is the memory sound?", self._where)
        if found != own:
            places = [slice(i * DIGEST_SIZE, (i + 1) * DIGEST_SIZE) for i in range(blocks)]
            wrong = [first + i for i, place in enumerate(places) if found[place] != own[place]]
            raise DamagedBlocksError(self.indexed, wrong)
        self.touched[first : first + blocks] = b"\x01" * blocks

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "VerifiedFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
