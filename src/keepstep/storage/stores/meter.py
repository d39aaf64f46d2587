"""Counts the bytes of uploads, and holds them back to a bandwidth."""

import threading
import time
from collections.abc import Callable

# So much may go at once after a pause, in seconds of the bandwidth.
_BURST = 0.25


class Meter:
    """Told before bytes are sent. Several threads may tell at once.

    Args:
        bytes_per_second: the most that is sent on average; None for no bound.
        on_bytes: told how many bytes go now.
        check: called with each piece; raises where the upload shall end.
    """

    def __init__(
        self,
        bytes_per_second: float | None = None,
        on_bytes: Callable[[int], object] = lambda count: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._rate, self._on_bytes, self._check = bytes_per_second, on_bytes, check
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.total = 0

    def add(self, count: int) -> None:
        """Wait until `count` bytes may go."""
        self._check()
        with self._lock:
            self.total += count
            wait = self._reserve(count)
        self._on_bytes(count)
        while wait > 0:  # in short pieces, so that an end is noticed
            time.sleep(min(wait, 0.2))
            wait -= 0.2
            self._check()

    def _reserve(self, count: int) -> float:
        if self._rate is None:
            return 0.0
        now = time.monotonic()
        self._free_at = max(self._free_at, now - _BURST) + count / self._rate
        return self._free_at - now
