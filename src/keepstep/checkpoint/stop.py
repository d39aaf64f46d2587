"""Stop requests: a signal is only noted; the job acts on it at a step boundary."""

import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopNotice:
    """Notes SIGTERM and SIGINT while it is installed. The handler does nothing else, so it can break nothing."""

    def __init__(self) -> None:
        self.noted: int | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def install(self) -> None:
        """Take the signals over. Outside the main thread, where Python allows no handlers, it does nothing."""
        if threading.current_thread() is not threading.main_thread() or self._previous:
            return
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._note)

    def restore(self) -> None:
        """Give the signals back to whom they belonged."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.noted = number
