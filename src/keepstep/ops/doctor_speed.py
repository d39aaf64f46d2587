"""How fast a file system takes and gives large files, as a save writes them and a resume reads them."""

import os
import time
from pathlib import Path

from keepstep.plan.doctor_facts import Speed
from keepstep.storage.digest import block_digests
from keepstep.storage.reread import read_past_cache
from keepstep.storage.writer import WINDOW, Writer


class _Noise:
    """Bytes that neither compress nor repeat within a window, for a file of any size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._noise = memoryview(os.urandom(min(size, WINDOW)))

    def read(self, begin: int, target: memoryview) -> None:
        done = 0
        while done < len(target):
            at = (begin + done) % len(self._noise)
            piece = self._noise[at : at + len(target) - done]
            target[done : done + len(piece)] = piece
            done += len(piece)

    def view(self, begin: int, end: int) -> memoryview | None:
        return None


def measure_speed(scratch: Path, amount: int) -> Speed:
    """Write that many bytes, synced, and read them back past the cache.

    Args:
        scratch: where.
        amount: bytes.

    Raises:
        OSError: the disk is full or broken.
    """
    path = scratch / "speed"
    written = Writer().write(path, _Noise(amount))
    started, digests = time.monotonic(), []
    for begin in range(0, amount, WINDOW):
        digests.append(block_digests(read_past_cache(path, begin, min(WINDOW, amount - begin))))
    read_seconds = time.monotonic() - started
    path.unlink()
    return Speed(
        amount, written.write_seconds + written.sync_seconds, read_seconds, b"".join(digests) != written.digests
    )
