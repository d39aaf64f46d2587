"""Worker processes of a loader: stop signals are not for them."""

import os
import signal
import threading

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


def _end_with(parent: int) -> None:
    while True:
        if signal.sigwaitinfo({signal.SIGTERM}).si_pid == parent:
            os._exit(0)
