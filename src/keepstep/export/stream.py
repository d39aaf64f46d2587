"""Writes one safetensors file, tensor by tensor, and reads it back. Memory does not grow with tensors or files."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash

from keepstep.dcp.digests import bytes_of
from keepstep.dcp.regions import Box, slabs
from keepstep.errors import ExportError
from keepstep.export.origin import Origin, Wanted
from keepstep.plan.difference import Kind

# Bytes that are read, and written, in one go. There are two such buffers: one is filled while the other is written.
_PIECE = 32 * 1024 * 1024


@dataclass(frozen=True)
class Outgoing:
    """A tensor on its way into a file: what it is there, and where it comes from."""

    kind: Kind
    origin: Origin


@dataclass(frozen=True)
class WrittenFile:
    """A file of an export: its bytes, and their xxh3-128 in hex digits, as `xxh128sum` prints it."""

    size: int
    digest: str


def write_file(
    path: Path,
    head: bytes,
    tensors: Sequence[Outgoing],
    advance: Callable[[int], object] = lambda count: None,
    lost: Callable[[str, int], object] = lambda name, count: None,
) -> WrittenFile:
    """Write a new file, sync it and compare what is read back with what was meant.

    Args:
        path: where; nothing may have that name.
        head: what stands before the tensors.
        tensors: in the order in which they lie in the file.
        advance: told of bytes of tensors that are dealt with.
        lost: told how many finite numbers of a tensor became infinite in a narrower dtype.

    Raises:
        ExportError: what is read back is not what was written.
        OSError: the disk is full or broken.
    """
    state = xxhash.xxh3_128()
    size = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(data: memoryview) -> None:
        nonlocal size
        state.update(data)
        size += len(data)
        while data:
            data = data[os.write(descriptor, data) :]

    try:
        with ThreadPoolExecutor(1) as writer:
            pending = writer.submit(write, memoryview(head))
            for piece in _pieces(tensors, lost):
                pending.result()
                pending = writer.submit(write, piece)
                advance(len(piece))
            pending.result()
            # Whether the disk takes it and whether the file holds it are two questions, asked at the same time.
            syncing = writer.submit(os.fsync, descriptor)
            written = WrittenFile(size, state.hexdigest())
            found = digest_of(path)
            syncing.result()
    finally:
        os.close(descriptor)
    if found != written:
        raise ExportError(f"{path}: what is read back is not what was written; is the disk or the memory sound?")
    return written


def digest_of(path: Path) -> WrittenFile:
    """Read a file whole."""
    state, size = xxhash.xxh3_128(), 0
    buffer = memoryview(bytearray(1024 * 1024))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            state.update(buffer[:count])
            size += count
    return WrittenFile(size, state.hexdigest())


def _pieces(tensors: Sequence[Outgoing], lost: Callable[[str, int], object]) -> Iterator[memoryview]:
    """The bytes of all tensors, in pieces. A piece is valid until the one after the next is asked for."""
    total = sum(one.kind.size for one in tensors)
    buffers = [torch.empty(min(_PIECE, total), dtype=torch.uint8) for _ in range(2)]
    batch: list[tuple[Outgoing, Box, torch.Tensor]] = []
    used = 0
    for one in tensors:
        dtype: torch.dtype = getattr(torch, one.kind.dtype)
        element = max(dtype.itemsize, one.origin.weights[one.kind.key].dtype.itemsize)
        for box in slabs(one.kind.shape, _PIECE // element):
            size = box.elements * dtype.itemsize
            if used + size > len(buffers[0]):
                yield _filled(batch, buffers[0][:used], lost)
                buffers.reverse()
                batch, used = [], 0
            batch.append((one, box, buffers[0][used : used + size].view(dtype).view(box.shape)))
            used += size
    if used:
        yield _filled(batch, buffers[0][:used], lost)


def _filled(
    batch: Sequence[tuple[Outgoing, Box, torch.Tensor]], buffer: torch.Tensor, lost: Callable[[str, int], object]
) -> memoryview:
    wanted: dict[Origin, list[Wanted]] = {}
    casts = []
    for one, box, target in batch:
        stored = one.origin.weights[one.kind.key].dtype
        into = target
        if stored != target.dtype:
            into = torch.empty(box.shape, dtype=stored)
            casts.append((one.kind.key, into, target))
        wanted.setdefault(one.origin, []).append((one.kind.key, box, into))
    for origin, parts in wanted.items():
        origin.fill(parts)
    for name, values, target in casts:
        target.copy_(values)
        # The extremes are found forty times as fast as numbers are counted.
        if not all(one.isfinite() for one in target.aminmax()):
            lost(name, int((target.isinf() & values.isfinite()).sum()))
    return bytes_of(buffer)
