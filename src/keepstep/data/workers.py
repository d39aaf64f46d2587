"""Worker processes of a loader: stop signals are not for them."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import TypeVar

from keepstep.errors import DataError

T = TypeVar("T")

_IGNORED = (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def ignore_stop_signals(worker: int) -> None:
    """A `worker_init_fn`: signals that reach the whole process group stop the job at a step boundary, and its loader
    must live until then.

    SIGTERM from the parent still ends the worker: that is how a loader ends one that hangs. Who sent it is told to a
    thread that waits for it only.

    Args:
        worker: its number.
    """
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if not hasattr(signal, "sigwaitinfo"):  # macOS: there it cannot be told who sent it
        return
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with, args=(parent,), name="keepstep-worker-end", daemon=True).start()


def next_of(passes: Iterator[T]) -> T:
    """The next of a loader. A worker's DataError has the whole trace for its message: the last line is the error."""
    try:
        return next(passes)
    except DataError as error:
        if "\n" not in str(error):
            raise
        last = str(error).strip().rpartition("\n")[2]
        raise DataError(last.removeprefix(f"{DataError.__module__}.{DataError.__name__}: ")) from error


def _end_with(parent: int) -> None:
    while True:
        if signal.sigwaitinfo({signal.SIGTERM}).si_pid == parent:
            os._exit(0)
