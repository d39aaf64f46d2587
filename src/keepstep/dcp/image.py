"""The bytes of a shard file in memory: copied at the snapshot, or, while the job waits, read from the live tensors."""

import threading
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from keepstep.dcp.digests import bytes_of
from keepstep.dcp.entries import Entry
from keepstep.dcp.items import local_value
from keepstep.dcp.shard import Placed, Shard
from keepstep.storage.buffers import PageBuffer


class ShardImage:
    """What the small things of a shard file have in common with the large: frames that stay, payloads that change.

    Args:
        shard: the layout.
        buffer: holds the packed part, or, if it is as large as the file, all of it.
    """

    def __init__(self, shard: Shard, buffer: PageBuffer) -> None:
        self.shard = shard
        self.size = shard.size
        self.buffer = buffer
        self._is_whole = buffer.size >= shard.size
        self._tensors: list[tuple[str, torch.Tensor]] = []
        self._trees: list[tuple[str, memoryview]] = []
        self._live: Mapping[str, Entry] = {}
        self._lock = threading.Lock()
        self._copies: dict[int, memoryview] = {}
        self._pickles: Mapping[str, bytes] = {}
        self._copied: torch.cuda.Event | None = None
        end = 0
        for placed in shard.placed if self._is_whole else shard.small:
            self._clear(end, placed.offset)
            self._frame(placed)
            end = placed.offset + placed.length
        self._clear(end, shard.size if self._is_whole else shard.packed)
        self._begins = [placed.offset for placed in shard.large]

    def _clear(self, begin: int, end: int) -> None:
        self.buffer.view[begin:end] = bytes(end - begin)

    def _frame(self, placed: Placed) -> None:
        view, end = self.buffer.view, placed.data + placed.size
        view[placed.offset : placed.data] = placed.frame.head
        view[end : end + len(placed.frame.tail)] = placed.frame.tail
        item = placed.item
        if item.dtype is None:
            self._trees.append((item.key, view[placed.data : end]))
        elif placed.size:
            payload = torch.frombuffer(view[placed.data : end], dtype=torch.uint8)
            self._tensors.append((item.key, payload.view(item.dtype).view(item.shape)))

    def fits(self, pickles: Mapping[str, bytes]) -> bool:
        """Whether every tree still fits its slot."""
        return all(len(pickles[one.item.key]) <= one.size for one in self.shard.trees)

    def take(self, entries: Mapping[str, Entry], pickles: Mapping[str, bytes]) -> None:
        """Copy all values as they are now; what the buffer has no room for is read when it is written."""
        values = [(payload, local_value(entries[key].value)) for key, payload in self._tensors]
        with torch.no_grad():
            for payload, value in values:
                if not value.is_cuda:
                    payload.copy_(value)
            self._copied = _copy_from_device([pair for pair in values if pair[1].is_cuda])
        for key, slot in self._trees:
            data = pickles[key]
            slot[: len(data)] = data
            slot[len(data) :] = bytes(len(slot) - len(data))
        self._live, self._pickles = ({}, {}) if self._is_whole else (entries, pickles)

    def await_copies(self) -> None:
        """Wait until what comes from a device is here. Called before the first byte is read."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None

    def release(self) -> None:
        """Let go of live tensors."""
        self._live, self._pickles = {}, {}
        self._copies.clear()

    def view(self, begin: int, end: int) -> memoryview | None:
        """These bytes where they lie, if they lie in the buffer."""
        return self.buffer.view[begin:end] if self._is_whole or end <= self.shard.packed else None

    def read(self, begin: int, target: memoryview) -> None:
        """Copy the bytes from `begin` on. Called by several threads."""
        end = begin + len(target)
        if begin < self.shard.packed:
            stop = min(end, self.shard.packed)
            _copy(target, self.buffer.view[begin:stop], 0)
        if end <= self.shard.packed:
            return
        at = max(begin, self.shard.packed)
        for number in range(max(0, bisect_right(self._begins, at) - 1), len(self._begins)):
            placed = self.shard.large[number]
            if placed.offset >= end:
                break
            at = self._gap(target, begin, at, min(placed.offset, end))
            stop = placed.data + placed.size
            at = self._part(target, begin, at, end, placed.offset, memoryview(placed.frame.head))
            if at < min(end, stop):
                at = self._part(target, begin, at, end, placed.data, self._bytes(placed))
            at = self._part(target, begin, at, end, stop, memoryview(placed.frame.tail))
            if at >= stop + len(placed.frame.tail):
                self._forget(placed)
        self._gap(target, begin, at, end)

    def _part(self, target: memoryview, begin: int, at: int, end: int, first: int, data: memoryview) -> int:
        """Copy what of `data`, which lies at `first`, belongs between `at` and `end`. Returns where that ends."""
        stop = min(end, first + len(data))
        if at >= stop or stop <= first:
            return at
        _copy(target, data[at - first : stop - first], at - begin)
        return stop

    def _gap(self, target: memoryview, begin: int, at: int, end: int) -> int:
        if at < end:
            target[at - begin : end - begin] = bytes(end - at)
        return max(at, end)

    def _bytes(self, placed: Placed) -> memoryview:
        key = placed.item.key
        if placed.item.dtype is None:
            return memoryview(self._pickles[key].ljust(placed.size, b"\0"))
        value: Any = local_value(self._live[key].value)
        if value.device.type == "cpu" and value.is_contiguous() and not value.is_conj() and not value.is_neg():
            return bytes_of(value)
        with self._lock:
            if placed.offset not in self._copies:
                self._copies[placed.offset] = bytes_of(value)
            return self._copies[placed.offset]

    def _forget(self, placed: Placed) -> None:
        # A thread that is behind makes its copy anew.
        with self._lock:
            self._copies.pop(placed.offset, None)


def _copy(target: memoryview, data: memoryview, at: int) -> None:
    """As a slice assignment, but others may run meanwhile."""
    np.copyto(np.frombuffer(target[at : at + len(data)], np.uint8), np.frombuffer(data, np.uint8))


def _copy_from_device(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.cuda.Event | None:
    """Start copies on a stream of their own. What the job does next on the device waits for them, its host does not."""
    if not pairs:
        return None
    device = pairs[0][1].device
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for payload, value in pairs:
            payload.copy_(value, non_blocking=True)
            value.record_stream(stream)
    torch.cuda.current_stream(device).wait_stream(stream)
    done: torch.cuda.Event = stream.record_event()
    return done
