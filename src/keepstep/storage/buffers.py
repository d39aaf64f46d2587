"""Host memory that is written to disk from: page-aligned, mapped once, and never shared with a forked child."""

import ctypes
import mmap
import os

PAGE = 4096
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
_WARMED_AT_ONCE = 64 * 1024 * 1024


class PageBuffer:
    """Anonymous memory of its own.

    Forked children (loader workers) do not get it. If they did, every page would be copied at the first write after the
    fork, 34 times as slow as a copy into warm memory, and a page that is on its way to the disk could be the child's.

    Args:
        size: bytes; rounded up to whole pages.
    """

    def __init__(self, size: int) -> None:
        self.size = -(-max(size, 1) // PAGE) * PAGE
        self._map = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for name in ("MADV_DONTFORK", "MADV_HUGEPAGE"):
            advice = getattr(mmap, name, None)
            if advice is not None:
                _advise(self._map, advice)
        self.view = memoryview(self._map)

    def warm(self) -> None:
        """Let the system give the pages now, and not at the first save. The interpreter goes on meanwhile."""
        madvise = getattr(ctypes.CDLL(None, use_errno=True), "madvise", None)
        if madvise is None:
            return
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for begin in range(0, self.size, _WARMED_AT_ONCE):
            length = min(_WARMED_AT_ONCE, self.size - begin)
            code = madvise(ctypes.c_void_p(address + begin), ctypes.c_size_t(length), _POPULATE_WRITE)
            if code and ctypes.get_errno() == 12:
                raise MemoryError(f"no memory for {self.size} bytes of host buffers: {os.strerror(12)}")
            if code:
                return  # an older system: the first save touches them


def _advise(memory: mmap.mmap, advice: int) -> None:
    try:
        memory.madvise(advice)
    except OSError:
        return  # a system without it
