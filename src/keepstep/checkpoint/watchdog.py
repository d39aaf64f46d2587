"""Says where a process hangs: when something takes too long, the stacks of all threads are printed."""

import contextlib
import faulthandler
import io
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("keepstep")


@contextmanager
def watched(what: str, seconds: float) -> Iterator[None]:
    """Print the stacks of all threads to stderr if the body takes longer than that; again after twice the time.

    Args:
        what: what is done, for the message.
        seconds: how long it may take.
    """
    over = threading.Event()

    def watch() -> None:
        patience, waited = seconds, 0.0
        while not over.wait(patience):
            waited += patience
            logger.warning("%s has taken %.0f s so far; where all threads of this process are follows", what, waited)
            # A stream that is no file (a notebook's) cannot take them.
            with contextlib.suppress(io.UnsupportedOperation, AttributeError, ValueError):
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
            patience *= 2

    thread = threading.Thread(target=watch, name="keepstep-watchdog", daemon=True)
    with contextlib.suppress(RuntimeError):  # an interpreter at its end starts no threads
        thread.start()
    try:
        yield
    finally:
        over.set()
