"""Lets a thread stand back: its computing and its disk traffic go after those of the others."""

import contextlib
import ctypes
import os
import platform
import threading

_NICE = 10
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_WHO_PROCESS = 1
_BEST_EFFORT_LOWEST = (2 << 13) | 7


def stand_back(nice: int = _NICE) -> None:
    """Lower the priorities of this thread, as far as the system lets it. On Linux priorities belong to threads.

    Args:
        nice: from 0 to 19; the higher, the more it leaves to others.
    """
    thread = threading.get_native_id()
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, thread, nice)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None and platform.system() == "Linux":
        ctypes.CDLL(None).syscall(number, _WHO_PROCESS, thread, _BEST_EFFORT_LOWEST)
