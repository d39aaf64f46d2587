"""Fills tensors and returns Python trees: each rank reads its own parts, and every byte is compared."""

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from keepstep.dcp.digests import bytes_of
from keepstep.dcp.pickles import unpickle_tree
from keepstep.dcp.reads import Read, batches
from keepstep.dcp.regions import Box, Span, overlap, spans
from keepstep.dcp.shards import is_plain, narrowed, parts_of
from keepstep.dcp.source import DamageFoundError, Piece, Source, open_source
from keepstep.errors import (
    CouldNotLookError,
    DamagedCheckpointError,
    StateMismatchError,
    UnsupportedStateError,
)
from keepstep.plan import layout
from keepstep.storage.blocks import DamagedBlocksError, VerifiedFile
from keepstep.storage.digest import BLOCK_SIZE
from keepstep.storage.parallel import run_all
from keepstep.storage.verify import Damage

# Bytes that are read apart in one go, where they cannot be read to where they belong.
_LONGEST = 32 * 1024 * 1024
# Blocks that are verified in one go.
_BLOCKS = 512


def read(folder: Path, tensors: Mapping[str, torch.Tensor], trees: Collection[str]) -> dict[str, Any]:
    """Open a checkpoint, fill tensors and return trees, in one go.

    Raises:
        DamagedCheckpointError: it is not complete, or bytes are not as they were written.
        CouldNotLookError: a file cannot be read.
    """
    with open_source(folder) as source:
        try:
            fill(source, tensors)
            return read_trees(source, trees)
        except DamageFoundError as error:
            raise DamagedCheckpointError(f"{folder} is damaged: {error}") from error


def read_trees(source: Source, keys: Collection[str]) -> dict[str, Any]:
    """Python trees (see `keepstep.state.codec`) by key.

    Raises:
        DamageFoundError: bytes are not as they were written.
        CouldNotLookError: a file cannot be read.
        UnsupportedStateError: a value that only general unpickling could read.
    """
    trees = {}
    pieces = {key: source.piece_of(key) for key in keys}
    parts = []
    buffers: dict[str, bytearray] = {}
    for key, piece in pieces.items():
        item = piece.item
        buffers[key] = bytearray(item.offset + item.length - item.data)
        parts.append(Read(piece.file, item.data, memoryview(buffers[key])))
    read_parts(source, parts)
    for key, data in buffers.items():
        try:
            trees[key] = unpickle_tree(data)
        except pickle.UnpicklingError as error:
            raise UnsupportedStateError(f"{key} is no plain value, and nothing else is unpickled: {error}") from error
    return trees


def fill(source: Source, tensors: Mapping[str, torch.Tensor]) -> None:
    """Fill tensors in place; of a DTensor this rank's part, whatever its placements were when it was saved.

    Args:
        source: the checkpoint.
        tensors: key to a tensor of the stored shape and dtype.

    Raises:
        DamageFoundError: bytes are not as they were written. Some tensors are filled, some are not.
        CouldNotLookError: a file cannot be read.
    """
    # Elements that share memory (expanded buffers) cannot be written one by one.
    apart = {key: torch.empty(t.shape, dtype=t.dtype) for key, t in tensors.items() if _overlaps(t)}
    wanted = [(key, *part) for key, tensor in {**tensors, **apart}.items() for part in parts_of(tensor)]
    with torch.no_grad():
        fill_boxes(source, wanted)
        for key, values in apart.items():
            _spread(key, values, tensors[key])
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        torch.cuda.synchronize(device)


def fill_boxes(source: Source, wanted: Sequence[tuple[str, Box, torch.Tensor]]) -> None:
    """Fill memory with parts of stored tensors: the key, which part of it, and the memory, of that shape and dtype.

    Raises as `fill`.
    """
    found = [one for key, box, part in wanted for one in _found(source, key, box, part)]
    with torch.no_grad():
        read_parts(source, [read for piece, region, target in found for read in _reads(piece, region, target)])


def read_parts(source: Source, reads: Sequence[Read]) -> None:
    """Do all reads, on several threads. Raises as `fill`."""
    by_file: dict[str, list[Read]] = {}
    for read in reads:
        by_file.setdefault(read.file, []).append(read)
    jobs: list[Callable[[], None]] = []
    for name, own in sorted(by_file.items()):
        with _opened(source, name):  # in this thread, so that each is opened once
            jobs += [partial(_do, source, name, batch) for batch in batches(own)]
    run_all(jobs)


def _do(source: Source, name: str, batch: Sequence[Read]) -> None:
    with _opened(source, name) as file:
        if batch[0].then is not None:
            batch[0].then(file)
        elif len(batch) == 1:
            file.read_into(batch[0].offset, batch[0].target)
        else:
            file.read_many([(read.offset, read.target) for read in batch])


def _overlaps(tensor: torch.Tensor) -> bool:
    if isinstance(tensor, DTensor):
        return False
    return any(length > 1 and stride == 0 for length, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _spread(key: str, values: torch.Tensor, target: torch.Tensor) -> None:
    """Fill a tensor some of whose elements are one, if the values allow it."""
    first = values
    base = target
    for dim, (length, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if length > 1 and stride == 0:
            first, base = first.narrow(dim, 0, 1), base.narrow(dim, 0, 1)
    if bytes_of(first.expand(target.shape)) != bytes_of(values):
        raise StateMismatchError(f"{key}: elements that are one in this job differ in the checkpoint")
    base.copy_(first)


def _found(source: Source, key: str, box: Box, part: torch.Tensor) -> Iterator[tuple[Piece, Box, torch.Tensor]]:
    """Where a part of a tensor lies: each stored piece, the region of it, and where that goes."""
    found = 0
    for piece in source.pieces.get(key, ()):
        if (piece.item.at, piece.item.shape) == (box.at, box.shape):
            found += box.elements
            yield piece, Box((0,) * len(box.shape), box.shape), part
            continue
        stored = Box(piece.item.at, piece.item.shape)
        common = overlap(box, stored)
        if common is not None:
            found += common.elements
            target = narrowed(part, Box(_minus(common.at, box.at), common.shape))
            yield piece, Box(_minus(common.at, stored.at), common.shape), target
    if found != box.elements:
        problem = f"{key} has {found} of the {box.elements} elements of {box.shape} at {box.at}"
        raise DamageFoundError(Damage(layout.METADATA, problem))


def verify_rest(source: Source, runs: Sequence[tuple[str, int, int]]) -> None:
    """Compare blocks that nobody had a use for: (file, first, last) each. Raises as `fill`."""

    def verify(name: str, first: int, last: int) -> None:
        with _opened(source, name) as file:
            file.verify(first, last)

    jobs: list[Callable[[], None]] = []
    for name, first, last in runs:
        with _opened(source, name):
            jobs += [partial(verify, name, at, min(at + _BLOCKS, last)) for at in range(first, last, _BLOCKS)]
    run_all(jobs)


@contextmanager
def _opened(source: Source, name: str) -> Iterator[VerifiedFile]:
    """A file of the source; what goes wrong with it becomes an error that names it."""
    try:
        yield source.open(name)
    except FileNotFoundError:
        raise DamageFoundError(Damage(name, "it is missing")) from None
    except DamagedBlocksError as error:
        raise DamageFoundError(Damage(name, str(error), error.keys)) from error
    except OSError as error:
        raise CouldNotLookError(f"cannot read {source.place}/{name}: {error}") from error


def _reads(piece: Piece, region: Box, target: torch.Tensor) -> Iterator[Read]:
    """What is to be read for a region of a stored piece."""
    item, size = piece.item, target.element_size()
    if region.shape == item.shape and is_plain(target):
        yield Read(piece.file, item.data, bytes_of(target))
        return
    # What lies between two wanted rows is read with them if it is no more than a block.
    longest, gap = max(1, _LONGEST // size), BLOCK_SIZE // size
    for span in spans(item.shape, region, gap=gap, longest=longest):
        part = narrowed(target, Box(span.at, span.shape))
        begin = item.data + span.offset * size
        if span.length == part.numel() and is_plain(part):
            yield Read(piece.file, begin, bytes_of(part))
        else:
            yield Read(piece.file, begin, memoryview(b""), partial(_read_apart, begin, span, part))


def _read_apart(begin: int, span: Span, part: torch.Tensor, file: VerifiedFile) -> None:
    """Through memory of its own: rows with something between them, and devices (whose copies go on meanwhile)."""
    raw = torch.empty(span.length, dtype=part.dtype, pin_memory=part.is_cuda)
    file.read_into(begin, bytes_of(raw))
    with torch.no_grad():  # it belongs to the thread
        part.copy_(raw.as_strided(span.shape, span.strides), non_blocking=True)


def _minus(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip(first, second, strict=True))
