"""Tells how far a transfer is, whichever thread moves the bytes."""

import threading
from collections.abc import Callable

from keepstep.storage.stores.meter import Meter


class Tally:
    """Adds up bytes of all transfers of one command.

    Args:
        total: bytes that there are.
        watch: told how many of how many bytes are dealt with, by one thread at a time.
    """

    def __init__(self, total: int, watch: Callable[[int, int], None]) -> None:
        self._total, self._watch = total, watch
        self._done = 0
        self._lock = threading.Lock()

    def meter(self, mib_per_second: float | None = None) -> Meter:
        """Counts for this tally, and holds back to a bandwidth."""
        return Meter(None if mib_per_second is None else mib_per_second * 2**20, self._add)

    def _add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._watch(self._done, max(self._done, self._total))
