"""Compares the bytes of a checkpoint with its digests, and says which tensor a difference hits."""

import logging
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.plan.manifest import Manifest
from keepstep.storage.digest import BLOCK_SIZE, DIGEST_SIZE, block_digests, digest_of_blocks, digest_of_bytes
from keepstep.storage.index import MAX_INDEX, IndexedFile, IndexFormatError, from_bytes
from keepstep.storage.part import read_fully
from keepstep.storage.plain import NotPlainError, open_plain, read_plain
from keepstep.storage.reread import read_past_cache

logger = logging.getLogger("keepstep")

# Bytes that are read in one go: whole blocks.
_PIECE = 512 * BLOCK_SIZE
_SHOWN = 3
_LOOKED_AT = 100


@dataclass(frozen=True)
class Damage:
    """One file that is not as it was written. `problem` says what it holds there where that is known (`keys`)."""

    file: str
    problem: str
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


def verify_files(folder: Path, manifest: Manifest, names: Collection[str]) -> list[Damage]:
    """Read these files of a checkpoint and compare every block. What differs is read a second time, from the disk.

    Raises:
        CouldNotLookError: a file cannot be read. That is no damage: the disk or the network may be at fault.
    """
    damage = []
    for name in names:
        try:
            problem = _problem(folder, manifest, name)
        except FileNotFoundError:
            problem = "it is missing"
        except OSError as error:
            raise CouldNotLookError(f"cannot read {folder / name}: {error}") from error
        if problem:
            damage.append(Damage(name, problem))
    return damage


def _problem(folder: Path, manifest: Manifest, name: str) -> str:
    """What is wrong with a file; empty when nothing is."""
    record = manifest.files[name]
    try:
        descriptor = open_plain(folder / name)
    except NotPlainError as error:
        return str(error)
    try:
        size = os.fstat(descriptor).st_size
        if size != record.size:
            return f"{size} bytes, not {record.size}"
        digests = _digest(descriptor, size)
    finally:
        os.close(descriptor)
    if digest_of_blocks(digests) == record.digest:
        return ""
    indexed = _indexed(folder, manifest, name)
    wrong = list(range(-(-size // BLOCK_SIZE))) if indexed is None else _differing(digests, indexed)
    digests = _digest_again(folder / name, size, digests, wrong)
    if digest_of_blocks(digests) == record.digest:
        logger.warning("%s was read wrong once, then right from the disk: is the memory sound?", folder / name)
        return ""
    return "its content has changed" + (_where(indexed, _differing(digests, indexed)) if indexed is not None else "")


def _digest(descriptor: int, size: int) -> bytes:
    """The joined digests of the blocks of a file, as far as it goes."""
    buffer, found = memoryview(bytearray(min(size, _PIECE))), []
    for begin in range(0, size, _PIECE):
        piece = buffer[: min(_PIECE, size - begin)]
        try:
            read_fully(descriptor, begin, piece)
        except EOFError:
            break
        found.append(block_digests(piece))
    return b"".join(found)


def _digest_again(path: Path, size: int, digests: bytes, blocks: Sequence[int]) -> bytes:
    """The same with some blocks read anew, past the cache."""
    found = bytearray(digests)
    for first, last in _runs(blocks, _PIECE // BLOCK_SIZE):
        begin, end = first * BLOCK_SIZE, min(last * BLOCK_SIZE, size)
        found[first * DIGEST_SIZE : last * DIGEST_SIZE] = block_digests(read_past_cache(path, begin, end - begin))
    return bytes(found)


def _runs(blocks: Sequence[int], longest: int) -> Iterator[tuple[int, int]]:
    first = last = -1
    for block in blocks:
        if block != last or last - first == longest:
            if last > first:
                yield first, last
            first = block
        last = block + 1
    if last > first:
        yield first, last


def _indexed(folder: Path, manifest: Manifest, name: str) -> IndexedFile | None:
    """What an undamaged index says of a shard file; None without one."""
    index = f"__{name.removeprefix('__').split('_')[0]}.index"
    if not name.endswith(".distcp") or index not in manifest.files:
        return None
    try:
        data = read_plain(folder / index, min(manifest.files[index].size, MAX_INDEX))
        if digest_of_bytes(data) != manifest.files[index].digest:
            return None
        files = from_bytes(data)
    except (OSError, NotPlainError, IndexFormatError):
        return None
    record = manifest.files[name]
    return next((f for f in files if (f.name, f.size) == (name, record.size)), None)


def _differing(digests: bytes, indexed: IndexedFile) -> list[int]:
    own, width = indexed.digests, DIGEST_SIZE
    return [i // width for i in range(0, len(own), width) if digests[i : i + width] != own[i : i + width]]


def _where(indexed: IndexedFile, blocks: Sequence[int]) -> str:
    """Which tensors these blocks hold."""
    keys = sorted({key for block in blocks[:_LOOKED_AT] for key in indexed.items_at(block)})
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return f" in {len(blocks)} blocks ({', '.join(keys[:_SHOWN])}{more})"
