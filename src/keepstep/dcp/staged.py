"""The bytes of a shard file to be, copied into host memory, so that the job can go on before they are written."""

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from keepstep.dcp.digests import bytes_of
from keepstep.dcp.entries import Entry
from keepstep.dcp.image import LiveImage, as_tensor, clear, put_frame
from keepstep.dcp.items import local_value
from keepstep.dcp.shard import Placed, Shard
from keepstep.plan.blocks import runs_of
from keepstep.storage.buffers import PageBuffer
from keepstep.storage.digest import BLOCK_SIZE, DIGEST_SIZE, block_digests, digest
from keepstep.storage.parallel import run_on

# Copied and digested in one go, while it is in the processor's cache. Whole blocks.
_HOT = 32 * BLOCK_SIZE
_MOST_THREADS = 8


class _Piece:
    """A part of a large payload: where it comes from, the memory it goes to, and the blocks that lie in it whole.

    All is made once, so that a snapshot does as little as possible but copy and digest: threads that wait for the
    interpreter would wait for all else.
    """

    __slots__ = ("number", "places", "rows", "source", "target")

    def __init__(self, memory: "np.ndarray[Any, Any]", number: int, begin: int, at: int, stop: int) -> None:
        self.number, self.source = number, slice(begin, begin + stop - at)
        self.target = memory[at:stop]
        first, last = -(-at // BLOCK_SIZE), stop // BLOCK_SIZE
        self.rows = memory[first * BLOCK_SIZE : max(first, last) * BLOCK_SIZE].reshape(-1, BLOCK_SIZE)
        self.places = slice(first * DIGEST_SIZE, max(first, last) * DIGEST_SIZE)


class StagedImage(LiveImage):
    """All is copied when the snapshot is taken. What comes from the CPU is digested on the way.

    Args:
        shard: the layout.
        buffer: as large as the file.
    """

    def __init__(self, shard: Shard, buffer: PageBuffer) -> None:
        super().__init__(shard, buffer)
        self._copied: torch.cuda.Event | None = None
        self._is_pinned = False
        end = shard.packed
        self._large: list[tuple[str, torch.Tensor]] = []
        self._memory = np.frombuffer(buffer.view, np.uint8)
        self._pieces: list[_Piece] = []
        for placed in shard.large:
            clear(buffer, end, placed.offset)
            payload = put_frame(buffer, placed)
            end = placed.offset + placed.length
            if placed.item.dtype is None:
                self._trees.append((placed.item.key, payload))
            else:
                self._pieces += self._cut(len(self._large), placed)
                self._large.append((placed.item.key, as_tensor(placed, payload)))
        clear(buffer, end, shard.size)
        self._rest = self._find_rest()

    def _cut(self, number: int, placed: Placed) -> Iterator[_Piece]:
        at, end = placed.data, placed.data + placed.size
        while at < end:
            stop = min(end, (at + _HOT) // _HOT * _HOT)
            yield _Piece(self._memory, number, at - placed.data, at, stop)
            at = stop

    def _find_rest(self) -> list[tuple[int, int]]:
        """The blocks that lie in no piece whole."""
        done = bytearray(-(-self.size // BLOCK_SIZE))
        for piece in self._pieces:
            first, last = piece.places.start // DIGEST_SIZE, piece.places.stop // DIGEST_SIZE
            done[first:last] = b"\1" * (last - first)
        return runs_of(done, 0)

    def take(self, entries: Mapping[str, Entry], pickles: Mapping[str, bytes]) -> None:
        """Copy all values as they are now. They may change when this returns."""
        super().take(entries, pickles)
        values = [local_value(entries[key].value) for key, _ in self._large]
        if any(value.is_cuda for value in values):
            self.digests = None
            self._pin()
            with torch.no_grad():
                self._copied = _copy_from_device([payload for _, payload in self._large], values)
        else:
            self.digests = self._copy_and_digest(values)
        self.release()

    def _copy_and_digest(self, values: Sequence[torch.Tensor]) -> bytes:
        """Each piece is digested while it is in the processor's cache: later it would cost as much as the copy."""
        sources = [np.frombuffer(bytes_of(value), np.uint8) for value in values]
        digests = bytearray(-(-self.size // BLOCK_SIZE) * DIGEST_SIZE)

        def stage(piece: _Piece) -> None:
            np.copyto(piece.target, sources[piece.number][piece.source])
            digests[piece.places] = b"".join(map(digest, piece.rows))

        threads = min(torch.get_num_threads(), _MOST_THREADS, len(self._pieces))
        run_on(threads, iter(self._pieces), stage)
        for first, last in self._rest:
            found = block_digests(self.buffer.view[first * BLOCK_SIZE : min(last * BLOCK_SIZE, self.size)])
            digests[first * DIGEST_SIZE : last * DIGEST_SIZE] = found
        return bytes(digests)

    def view(self, begin: int, end: int) -> memoryview | None:
        """These bytes where they lie."""
        return self.buffer.view[begin:end]

    def await_copies(self) -> None:
        """Wait until what comes from a device is here. Called before the first byte is written."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None

    def _pin(self) -> None:
        """Let devices copy into the buffer by themselves. Without it copies are slower, and right all the same."""
        if self._is_pinned:
            return
        self._is_pinned = True
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer.view))
        with contextlib.suppress(RuntimeError, AttributeError):
            torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(address, self.buffer.size, 0)))


def _copy_from_device(payloads: list[torch.Tensor], values: list[torch.Tensor]) -> torch.cuda.Event | None:
    """Start copies on a stream of their own. What the job does next on the device waits for them, its host does not."""
    device = next(value.device for value in values if value.is_cuda)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for payload, value in zip(payloads, values, strict=True):
            payload.copy_(value, non_blocking=value.is_cuda)
            if value.is_cuda:
                value.record_stream(stream)
    torch.cuda.current_stream(device).wait_stream(stream)
    done: torch.cuda.Event = stream.record_event()
    return done
