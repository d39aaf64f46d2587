"""The bytes of a shard file to be, read from the live tensors while the job waits for the save."""

import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from keepstep.dcp.digests import bytes_of
from keepstep.dcp.entries import Entry
from keepstep.dcp.items import local_value
from keepstep.dcp.shard import Placed, Shard
from keepstep.dcp.shards import is_plain
from keepstep.storage.buffers import PageBuffer


class LiveImage:
    """Small things are copied when the snapshot is taken, large ones read when they are written.

    Args:
        shard: the layout.
        buffer: holds the packed part; frames are written into it once and for all.
    """

    def __init__(self, shard: Shard, buffer: PageBuffer) -> None:
        self.shard = shard
        self.size = shard.size
        self.buffer = buffer
        self._tensors: list[tuple[str, torch.Tensor]] = []
        self._trees: list[tuple[str, memoryview]] = []
        self._entries: Mapping[str, Entry] = {}
        self._pickles: Mapping[str, bytes] = {}
        self._lock = threading.Lock()
        self._copies: dict[int, memoryview] = {}
        self._put_frames(shard.small, 0, shard.packed)
        self._begins = [placed.offset for placed in shard.large]

    def _put_frames(self, items: Sequence[Placed], begin: int, end: int) -> None:
        """Write what stays the same between `begin` and `end`: frames, and zeros between the items."""
        view, at = self.buffer.view, begin
        for placed in items:
            stop = placed.data + placed.size
            view[at : placed.offset] = bytes(placed.offset - at)
            view[placed.offset : placed.data] = placed.frame.head
            view[stop : stop + len(placed.frame.tail)] = placed.frame.tail
            at = placed.offset + placed.length
            payload = view[placed.data : stop]
            if placed.item.dtype is None:
                self._trees.append((placed.item.key, payload))
            elif placed.size:
                self._tensors.append((placed.item.key, _as_tensor(placed.item.dtype, placed.item.shape, payload)))
        view[at:end] = bytes(end - at)

    def fits(self, pickles: Mapping[str, bytes]) -> bool:
        """Whether every tree still fits its slot."""
        return all(len(pickles[one.item.key]) <= one.size for one in self.shard.trees)

    def take(self, entries: Mapping[str, Entry], pickles: Mapping[str, bytes]) -> None:
        """Take all values as they are now. Large tensors must not change before `release`."""
        with torch.no_grad():
            self.copy_tensors(entries)
        for key, slot in self._trees:
            data = pickles[key]
            slot[: len(data)] = data
            slot[len(data) :] = bytes(len(slot) - len(data))
        self._entries, self._pickles = entries, pickles

    def copy_tensors(self, entries: Mapping[str, Entry]) -> None:
        """Copy what the buffer has room for."""
        for key, payload in self._tensors:
            payload.copy_(local_value(entries[key].value))

    def await_copies(self) -> None:
        """Nothing is under way."""

    def release(self) -> None:
        """Let go of the live tensors."""
        self._entries, self._pickles = {}, {}
        self._copies.clear()

    def view(self, begin: int, end: int) -> memoryview | None:
        """These bytes where they lie, if they lie in the buffer."""
        return self.buffer.view[begin:end] if end <= self.shard.packed else None

    def read(self, begin: int, target: memoryview) -> None:
        """Copy the bytes from `begin` on. Called by several threads."""
        end, at = begin + len(target), begin
        if begin < self.shard.packed:
            at = min(end, self.shard.packed)
            _copy(target, self.buffer.view[begin:at], 0)
        first = max(0, bisect_right(self._begins, at) - 1)
        for placed in self.shard.large[first:]:
            if placed.offset >= end:
                break
            at = _gap(target, begin, at, min(placed.offset, end))
            stop = placed.data + placed.size
            at = _part(target, begin, at, placed.offset, memoryview(placed.frame.head))
            if at < min(end, stop):
                at = _part(target, begin, at, placed.data, self._bytes(placed))
            at = _part(target, begin, at, stop, memoryview(placed.frame.tail))
            if at >= placed.offset + placed.length:
                self._forget(placed)
        _gap(target, begin, at, end)

    def _bytes(self, placed: Placed) -> memoryview:
        key = placed.item.key
        if placed.item.dtype is None:
            return memoryview(self._pickles[key].ljust(placed.size, b"\0"))
        value: torch.Tensor = local_value(self._entries[key].value)
        if is_plain(value):
            return bytes_of(value)
        with self._lock:
            if placed.offset not in self._copies:
                self._copies[placed.offset] = bytes_of(value)
            return self._copies[placed.offset]

    def _forget(self, placed: Placed) -> None:
        # A thread that is behind makes its copy anew.
        with self._lock:
            self._copies.pop(placed.offset, None)


def _as_tensor(dtype: torch.dtype, shape: tuple[int, ...], payload: memoryview) -> torch.Tensor:
    """A payload as the tensor that goes there."""
    flat = torch.frombuffer(payload, dtype=dtype)
    return flat if len(shape) == 1 else flat.view(shape)


def _part(target: memoryview, begin: int, at: int, first: int, data: memoryview) -> int:
    """Copy what of `data`, which lies at `first`, belongs behind `at`. Returns where that ends."""
    stop = min(begin + len(target), first + len(data))
    if at >= stop or at < first:
        return at
    _copy(target, data[at - first : stop - first], at - begin)
    return stop


def _gap(target: memoryview, begin: int, at: int, end: int) -> int:
    if at < end:
        target[at - begin : end - begin] = bytes(end - at)
    return max(at, end)


def _copy(target: memoryview, data: memoryview, at: int) -> None:
    """As a slice assignment, but others may run meanwhile."""
    np.copyto(np.frombuffer(target[at : at + len(data)], np.uint8), np.frombuffer(data, np.uint8))
