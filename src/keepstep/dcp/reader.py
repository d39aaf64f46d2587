"""Fills tensors and returns Python trees: each rank reads its own parts, and every byte is compared."""

import io
import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from keepstep.dcp.digests import bytes_of
from keepstep.dcp.regions import Box, Span, overlap, spans
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
from keepstep.storage.verify import Damage

# Bytes that are read apart in one go, where they cannot be read to where they belong.
_LONGEST = 32 * 1024 * 1024


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
    for key, piece in sorted(pieces.items(), key=lambda one: _place(one[1])):
        data = bytearray(piece.item.length)
        with _opened(source, piece.file) as file:
            file.read_into(piece.item.offset, memoryview(data))
        try:
            trees[key] = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
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
    wanted = [one for key, tensor in {**tensors, **apart}.items() for one in _wanted(source, key, tensor)]
    with torch.no_grad():
        for piece, region, target in sorted(wanted, key=lambda one: _place(one[0])):
            with _opened(source, piece.file) as file:
                _fill(file, piece, region, target)
        for key, values in apart.items():
            _spread(key, values, tensors[key])


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


def _wanted(source: Source, key: str, tensor: torch.Tensor) -> Iterator[tuple[Piece, Box, torch.Tensor]]:
    """What this rank needs of a key: stored pieces, the region of each, and where it goes."""
    for box, part in _parts(tensor):
        found = 0
        for piece in source.pieces.get(key, ()):
            stored = Box(piece.item.at, piece.item.shape)
            common = overlap(box, stored)
            if common is not None:
                found += common.elements
                target = _narrowed(part, Box(_minus(common.at, box.at), common.shape))
                yield piece, Box(_minus(common.at, stored.at), common.shape), target
        if found != box.elements:
            problem = f"{key} has {found} of the {box.elements} elements of {box.shape} at {box.at}"
            raise DamageFoundError(Damage(layout.METADATA, problem))


def verify_rest(source: Source, runs: Sequence[tuple[str, int, int]]) -> None:
    """Compare blocks that nobody had a use for: (file, first, last) each. Raises as `fill`."""
    for name, first, last in runs:
        with _opened(source, name) as file:
            file.verify(first, last)


@contextmanager
def _opened(source: Source, name: str) -> Iterator[VerifiedFile]:
    """A file of the source; what goes wrong with it becomes an error that names it."""
    try:
        yield source.open(name)
    except FileNotFoundError:
        raise DamageFoundError(Damage(name, "it is missing")) from None
    except DamagedBlocksError as error:
        raise DamageFoundError(Damage(name, str(error))) from error
    except OSError as error:
        raise CouldNotLookError(f"cannot read {source.folder / name}: {error}") from error


def _place(piece: Piece) -> tuple[str, int]:
    return piece.file, piece.item.offset


def _parts(tensor: torch.Tensor) -> Iterator[tuple[Box, torch.Tensor]]:
    """This rank's parts of a tensor: their boxes in the whole, and the memory to fill."""
    if not isinstance(tensor, DTensor):
        yield Box((0,) * tensor.ndim, tuple(tensor.shape)), tensor
        return
    local = tensor.to_local()
    for chunk in tensor.__create_chunk_list__():
        box = Box(tuple(chunk.offsets), tuple(chunk.sizes))
        if box.elements:
            yield box, local


def _fill(file: VerifiedFile, piece: Piece, region: Box, target: torch.Tensor) -> None:
    item, size = piece.item, target.element_size()
    # What lies between two wanted rows is read with them if it is no more than a block.
    longest, gap = max(1, _LONGEST // size), BLOCK_SIZE // size
    for span in spans(item.shape, region, gap=gap, longest=longest):
        part = _narrowed(target, Box(span.at, span.shape))
        begin = item.data + span.offset * size
        is_plain = part.device.type == "cpu" and part.is_contiguous() and not part.is_conj() and not part.is_neg()
        if is_plain and span.length == part.numel():
            file.read_into(begin, bytes_of(part))
        else:
            part.copy_(_read_apart(file, begin, span, target.dtype))


def _read_apart(file: VerifiedFile, begin: int, span: Span, dtype: torch.dtype) -> torch.Tensor:
    raw = torch.empty(span.length, dtype=dtype)
    file.read_into(begin, bytes_of(raw))
    return raw.as_strided(span.shape, span.strides)


def _narrowed(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    for dim, (begin, length) in enumerate(zip(box.at, box.shape, strict=True)):
        tensor = tensor.narrow(dim, begin, length)
    return tensor


def _minus(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip(first, second, strict=True))
