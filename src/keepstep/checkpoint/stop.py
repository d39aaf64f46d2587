"""Stop requests: a signal is only noted; the job acts on it at a step boundary."""

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

STOP_SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")
# These have a meaning of their own to some: a handler that somebody has set stays.
_OF_OTHERS = (signal.SIGUSR1, signal.SIGUSR2)


class StopNotice:
    """Notes stop signals while it is installed. The handler does nothing else, so it can break nothing.

    The first one counts; all that follow are ignored, since the job is on its way out. In a forked process (a worker of
    a loader) they are noted too, and nobody asks.

    Attributes:
        noted: the number of the first signal; None as long as none came.
        noted_at: when, by the monotonic clock.
        interrupts: how often Ctrl-C came.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.noted: int | None = None
        self.interrupts = 0
        self.noted_at = 0.0
        self._clock = clock
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def seconds_since(self) -> float:
        """Since the first signal; 0 as long as none came."""
        return 0.0 if self.noted is None else self._clock() - self.noted_at

    def install(self, names: Sequence[str] = STOP_SIGNALS) -> None:
        """Take the signals over. Outside the main thread, where Python allows no handlers, it does nothing."""
        if threading.current_thread() is not threading.main_thread() or self._previous:
            return
        for number in (signal.Signals[name] for name in names):
            if number in _OF_OTHERS and signal.getsignal(number) is not signal.SIG_DFL:
                continue
            self._previous[number] = signal.signal(number, self._note)

    def restore(self) -> None:
        """Give the signals back to whom they belonged."""
        for number, handler in self._previous.items():
            # None: it was not set from Python, and cannot be set again from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.interrupts += number == signal.SIGINT
        if self.noted is None:
            self.noted, self.noted_at = number, self._clock()


def seconds_left(notice: StopNotice, grace: float | None) -> float | None:
    """How long this process has from now on until it is killed, given that a stop was requested of it.

    Args:
        notice: of this process.
        grace: seconds from the signal to the end; None: what SLURM says of the job's end.

    Returns:
        Seconds; None where nobody knows, or no signal came.
    """
    if notice.noted is None:
        return None
    if grace is not None:
        return grace - notice.seconds_since
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    return float(end) - time.time() if end.isdecimal() else None


def waiting_time(notice: StopNotice, grace: float | None, most: float | None = None) -> Callable[[], float | None]:
    """How long a job that is over may wait for something that is only useful, to be asked again and again.

    Args:
        notice: of this process; a stop may come while it waits, and a Ctrl-C then ends the wait.
        grace: as of `seconds_left`.
        most: seconds from now; None for no bound.
    """
    before, began = notice.interrupts, time.monotonic()

    def left() -> float | None:
        if notice.interrupts > before:
            return 0.0
        bounds = [seconds_left(notice, grace), None if most is None else most - (time.monotonic() - began)]
        return min((one for one in bounds if one is not None), default=None)

    return left
