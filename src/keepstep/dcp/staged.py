"""The bytes of a shard file to be, copied into host memory, so that the job can go on before they are written."""

import contextlib
import ctypes
import os
import weakref
from collections.abc import Mapping

import torch

from keepstep.dcp.entries import Entry
from keepstep.dcp.image import LiveImage
from keepstep.dcp.items import local_value
from keepstep.dcp.shard import Shard
from keepstep.storage.buffers import PageBuffer


class StagedImage(LiveImage):
    """All is copied when the snapshot is taken, and nothing else is done then: digests are taken by the writer.

    Digesting each piece while the copy has it in the processor's cache was tried: it costs less in all, but the job
    stands still for it, one and a half times as long.

    Args:
        shard: the layout.
        buffer: as large as the file.
    """

    def __init__(self, shard: Shard, buffer: PageBuffer) -> None:
        super().__init__(shard, buffer)
        self._copied: torch.cuda.Event | None = None
        self._is_pinned = False
        self._put_frames(shard.large, shard.packed, shard.size)

    def take(self, entries: Mapping[str, Entry], pickles: Mapping[str, bytes]) -> None:
        """Copy all values as they are now. They may change when this returns."""
        super().take(entries, pickles)
        self.release()

    def copy_tensors(self, entries: Mapping[str, Entry]) -> None:
        pairs = [(payload, local_value(entries[key].value)) for key, payload in self._tensors]
        on_device = [pair for pair in pairs if pair[1].is_cuda]
        if on_device:
            self._pin()
            self._copied = _copy_from_device(on_device)
        for payload, value in pairs:
            if not value.is_cuda:
                payload.copy_(value)

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
            # Before the memory goes: what is mapped at these addresses next would be taken for these pages.
            weakref.finalize(self.buffer, _unpin, address, os.getpid()).atexit = False


def _unpin(address: int, process: int) -> None:
    if os.getpid() == process:  # a forked child has neither the memory nor the device
        torch.cuda.cudart().cudaHostUnregister(address)


def _copy_from_device(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.cuda.Event:
    """Start copies on a stream of their own. What the job does next on the device waits for them, its host does not."""
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
