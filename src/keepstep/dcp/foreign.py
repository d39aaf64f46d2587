"""Loads folders that plain `torch.distributed.checkpoint.save` wrote, straight into the tensors that they are for."""

import io
import os
import pickle
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from keepstep.dcp.archive import find_raw, refuse_unsafe_archive
from keepstep.dcp.digests import bytes_of
from keepstep.dcp.metadata import read_metadata
from keepstep.dcp.opcodes import MALFORMED
from keepstep.dcp.pickles import has_bytes, unpickle_value
from keepstep.dcp.regions import Box, overlap, spans
from keepstep.dcp.shards import is_plain, narrowed, parts_of
from keepstep.errors import CheckpointNotFoundError, DamagedCheckpointError, StateMismatchError, UnsupportedStateError
from keepstep.storage.parallel import run_all
from keepstep.storage.part import read_fully
from keepstep.storage.plain import NotPlainError, open_plain

# Smaller ones are read together with their neighbours.
_DIRECT_FROM = 64 * 1024
# Bytes that one thread reads in one go.
_PIECE = 4 * 1024 * 1024
_BATCH = 1024 * 1024
_SHOWN = 4
# torch's reader asserts, too.
_UNREADABLE = (*MALFORMED, AssertionError, struct.error)


def load_dcp(state_dict: dict[str, Any], folder: str | os.PathLike[str]) -> None:
    """Fill a state dict from a folder of `torch.distributed.checkpoint.save`, as `torch.distributed.checkpoint.load`
    does, several times as fast.

    Raw bytes go from the file straight into each tensor's own memory, by several threads; of a DTensor only this rank's
    part is read. No collective. Such a folder has no digests, so nothing is verified.

    Args:
        state_dict: nested dicts and lists; tensors are filled in place, other values replaced.
        folder: the checkpoint.

    Raises:
        CheckpointNotFoundError: no checkpoint is there.
        StateMismatchError: it lacks a key, or holds another shape. Nothing was changed.
        UnsupportedStateError: a value that only general unpickling could read.
        DamagedCheckpointError: a file is cut off or not readable, or is a link, which could lead out of the folder.
        CouldNotLookError: `.metadata` cannot be read.
    """
    path = Path(folder)
    if not (path / ".metadata").is_file():
        raise CheckpointNotFoundError(f"{path}: no DCP checkpoint there, it has no .metadata")
    metadata = read_metadata(path)
    flat, places = flatten_state_dict(state_dict)
    _refuse_what_does_not_fit(flat, metadata, path)
    transformed: dict[str, set[str]] = {}
    for index, place in metadata.storage_data.items():
        if place.transform_descriptors:
            transformed.setdefault(index.fqn, set()).add(place.relative_path)
    for key, value in flat.items():
        # torch unpickles values without restriction: it is asked for tensors only.
        if key in transformed and not isinstance(value, torch.Tensor):
            raise UnsupportedStateError(f"{key} is a value that was transformed when it was saved; it is not unpickled")
        for name in transformed.get(key, ()):
            os.close(_open_plain(path / name))
    if ordinary := {key: value for key, value in flat.items() if key in transformed}:
        try:
            load(ordinary, checkpoint_id=path, no_dist=True)
        except (*_UNREADABLE, CheckpointException) as error:
            raise DamagedCheckpointError(f"{path} is not readable: {type(error).__name__}") from error
        for key, value in ordinary.items():
            _put(state_dict, places[key], value)
    with ExitStack() as closing:
        loader = _Loader(path, metadata, closing)
        try:
            own = {key: value for key, value in flat.items() if key not in transformed}
            for key, value in own.items():
                if isinstance(value, torch.Tensor):
                    loader.ask(key, value)
            values = {key: loader.value(key) for key, value in own.items() if not isinstance(value, torch.Tensor)}
            run_all(loader.jobs())
            for key, value in values.items():
                _put(state_dict, places[key], value)
        except (EOFError, FileNotFoundError) as error:
            raise DamagedCheckpointError(f"{path} is not complete: {error}") from error
    for device in {value.device for value in flat.values() if isinstance(value, torch.Tensor) and value.is_cuda}:
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class _Part:
    """A region of a stored shard: where its archive lies, where the region goes, and the whole shard's shape."""

    key: str
    offset: int
    length: int
    region: Box
    target: torch.Tensor
    stored: tuple[int, ...]


class _Loader:
    """Finds out what is to be read, and reads it."""

    def __init__(self, folder: Path, metadata: Metadata, closing: ExitStack) -> None:
        self._folder, self._metadata, self._closing = folder, metadata, closing
        self._descriptors: dict[str, int] = {}
        self._pieces: dict[str, list[tuple[Any, Any]]] = {}
        for index, place in metadata.storage_data.items():
            self._pieces.setdefault(index.fqn, []).append((index, place))
        self._small: dict[str, list[_Part]] = {}
        self._large: list[Callable[[], None]] = []

    def jobs(self) -> list[Callable[[], None]]:
        """The reads that were asked for."""
        small = [partial(self._copy_small, name, own) for name, parts in self._small.items() for own in _batches(parts)]
        return [*self._large, *small]

    def ask(self, key: str, tensor: torch.Tensor) -> None:
        """Plan the reads for a tensor."""
        stored_as: Any = self._metadata.state_dict_metadata[key]
        chunks = {tuple(chunk.offsets): tuple(chunk.sizes) for chunk in stored_as.chunks}
        for box, target in parts_of(tensor.detach()):
            found = 0
            for index, place in self._pieces.get(key, ()):
                at = tuple(index.offset or ())
                if at not in chunks:
                    raise DamagedCheckpointError(
                        f"{self._folder}: {key} has a part at {at}, which is none of its chunks"
                    )
                stored = Box(at, chunks[at])
                common = overlap(box, stored)
                if common is None:
                    continue
                found += common.elements
                self._open(place.relative_path)  # here, and not by several threads at once
                region = Box(tuple(a - b for a, b in zip(common.at, stored.at, strict=True)), common.shape)
                inside = Box(tuple(a - b for a, b in zip(common.at, box.at, strict=True)), common.shape)
                part = _Part(key, place.offset, place.length, region, narrowed(target, inside), stored.shape)
                if place.length < _DIRECT_FROM:
                    self._small.setdefault(place.relative_path, []).append(part)
                else:
                    self._ask_large(place.relative_path, part)
            if found != box.elements:
                raise DamagedCheckpointError(
                    f"{self._folder} is not complete: {key} has only {found} of its {box.elements} elements at {box.at}"
                )

    def value(self, key: str) -> Any:
        """A Python value."""
        if len(self._pieces.get(key, ())) != 1:
            raise DamagedCheckpointError(f"{self._folder} is not complete: {key} is listed and lies nowhere")
        ((_, place),) = self._pieces[key]
        return self._load(key, place)

    def _ask_large(self, name: str, part: "_Part") -> None:
        descriptor, target = self._open(name), part.target
        raw = find_raw(part.length, lambda at, size: _read(descriptor, part.offset + at, size))
        if raw is None or raw.shape != part.stored or raw.dtype != target.dtype:
            self._large.append(partial(self._copy_whole, name, part))
            return
        size = target.element_size()
        for span in spans(raw.shape, part.region, gap=_DIRECT_FROM // size, longest=max(1, _PIECE // size)):
            piece = narrowed(target, Box(span.at, span.shape))
            begin = part.offset + raw.data + span.offset * size
            if span.length == piece.numel() and is_plain(piece):
                view = bytes_of(piece)
                for at in range(0, len(view), _PIECE):
                    self._large.append(partial(read_fully, descriptor, begin + at, view[at : at + _PIECE]))
            else:
                self._large.append(partial(_copy_span, descriptor, begin, span, piece))

    def _copy_small(self, name: str, parts: Sequence["_Part"]) -> None:
        """Many small ones that lie close together, in one read."""
        begin = parts[0].offset
        data = _read(self._open(name), begin, max(part.offset + part.length for part in parts) - begin)
        for part in parts:
            own = data[part.offset - begin : part.offset - begin + part.length]
            raw = find_raw(part.length, partial(_cut, own))
            is_whole = raw is not None and raw.shape == part.region.shape
            if raw is not None and is_whole and raw.dtype == part.target.dtype and is_plain(part.target):
                target = bytes_of(part.target)
                target[:] = own[raw.data : raw.data + len(target)]
            else:
                _fill(part, own)

    def _copy_whole(self, name: str, part: "_Part") -> None:
        _fill(part, _read(self._open(name), part.offset, part.length))

    def _load(self, key: str, place: Any) -> Any:
        return _unpickled(key, _read(self._open(place.relative_path), place.offset, place.length))

    def _open(self, name: str) -> int:
        if name not in self._descriptors:
            self._descriptors[name] = _open_plain(self._folder / name)
            self._closing.callback(os.close, self._descriptors[name])
        return self._descriptors[name]


def _batches(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Small parts of one file that are read in one go."""
    batch: list[_Part] = []
    for part in sorted(parts, key=lambda one: one.offset):
        if batch and part.offset + part.length - batch[0].offset > _BATCH:
            yield batch
            batch = []
        batch.append(part)
    if batch:
        yield batch


def _fill(part: _Part, data: bytes) -> None:
    value = _unpickled(part.key, data)
    if not isinstance(value, torch.Tensor) or value.shape != part.stored:
        raise DamagedCheckpointError(f"{part.key} is not a tensor of shape {part.stored} where it is said to lie")
    with torch.no_grad():
        part.target.copy_(narrowed(value, part.region))


def _cut(data: bytes, offset: int, size: int) -> bytes:
    return data[offset : offset + size]


def _open_plain(path: Path) -> int:
    try:
        return open_plain(path)
    except NotPlainError as error:
        raise DamagedCheckpointError(
            f"{path}: {error} (links are not followed: they may lead out of the checkpoint)"
        ) from error
    except FileNotFoundError as error:
        raise DamagedCheckpointError(f"{path} is missing") from error


def _read(descriptor: int, offset: int, size: int) -> bytes:
    # No memory for bytes that are not there.
    if offset + size > os.fstat(descriptor).st_size:
        raise EOFError(f"a file ends before byte {offset + size}")
    data = bytearray(size)
    read_fully(descriptor, offset, memoryview(data))
    return bytes(data)


def _unpickled(key: str, data: bytes) -> Any:
    try:
        pickled = refuse_unsafe_archive(data)
        if has_bytes(pickled):
            return unpickle_value(pickled)
        return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise UnsupportedStateError(f"{key} is no plain value, and nothing else is unpickled: {error}") from error
    except _UNREADABLE as error:
        raise DamagedCheckpointError(f"{key} is not readable: {type(error).__name__}") from error


def _copy_span(descriptor: int, begin: int, span: Any, part: torch.Tensor) -> None:
    raw = torch.empty(span.length, dtype=part.dtype, pin_memory=part.is_cuda)
    read_fully(descriptor, begin, bytes_of(raw))
    with torch.no_grad():  # it belongs to the thread
        part.copy_(raw.as_strided(span.shape, span.strides), non_blocking=True)


def _refuse_what_does_not_fit(flat: Mapping[str, Any], metadata: Metadata, folder: Path) -> None:
    problems = []
    for key, value in flat.items():
        stored = metadata.state_dict_metadata.get(key)
        if stored is None:
            problems.append(f"{key} is not in it")
        elif isinstance(value, torch.Tensor) != isinstance(stored, TensorStorageMetadata):
            problems.append(f"{key} is a tensor in one and none in the other")
        elif isinstance(stored, TensorStorageMetadata) and tuple(stored.size) != tuple(value.shape):
            problems.append(f"{key} has shape {tuple(stored.size)} in it, {tuple(value.shape)} here")
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise StateMismatchError(f"{folder} does not fit: {'; '.join(problems[:_SHOWN])}{more}")


def _put(state: Any, path: tuple[Any, ...], value: Any) -> None:
    for part in path[:-1]:
        state = state[part]
    state[path[-1]] = value
