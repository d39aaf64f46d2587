"""Which rank held the others up."""

import statistics
from collections.abc import Sequence

_FACTOR = 2.0
_SECONDS = 1.0


def straggler(seconds: Sequence[float]) -> int | None:
    """The rank that took much longer than most: over twice the median, and over a second more. None if none did."""
    if len(seconds) < 2:
        return None
    rank = max(range(len(seconds)), key=seconds.__getitem__)
    others = statistics.median(value for other, value in enumerate(seconds) if other != rank)
    return rank if seconds[rank] > max(_FACTOR * others, others + _SECONDS) else None
