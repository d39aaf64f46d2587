"""Host memory that is written to disk from: page-aligned, mapped once, and never shared with a forked child."""

import ctypes
import mmap
import os
import weakref

PAGE = 4096
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14
_WARMED_AT_ONCE = 64 * 1024 * 1024


_living: "weakref.WeakSet[PageBuffer]" = weakref.WeakSet()


class PageBuffer:
    """Anonymous memory of its own.

    Forked children (loader workers) do not get it. If they did, every page would be copied at the first write after the
    fork, 34 times as slow as a copy into warm memory, and a page that is on its way to the disk could be the child's.

    Args:
        size: bytes; rounded up to whole pages.
    """

    def __init__(self, size: int) -> None:
        self.size = -(-max(size, 1) // PAGE) * PAGE
        self._process = os.getpid()
        self._map = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for name in ("MADV_DONTFORK", "MADV_HUGEPAGE"):
            advice = getattr(mmap, name, None)
            if advice is not None:
                _advise(self._map, advice)
        self.view = memoryview(self._map)
        _living.add(self)

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child, which has the object and not its memory."""
        return self._process != os.getpid()

    def keep_for_ever(self) -> None:
        """In a forked child: never unmap. Something else may lie at these addresses there."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._map))

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


def _after_fork() -> None:
    for buffer in list(_living):
        buffer.keep_for_ever()


os.register_at_fork(after_in_child=_after_fork)


def _advise(memory: mmap.mmap, advice: int) -> None:
    try:
        memory.madvise(advice)
    except OSError:
        return  # a system without it
