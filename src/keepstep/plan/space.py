"""Whether a checkpoint fits onto the disk, and whether there is time left to write it."""

from collections.abc import Sequence


def missing_bytes(free: int | None, needed: int) -> int:
    """How many bytes more a save needs than are free; 0 when it fits, or when nobody knows (`free` is None)."""
    return 0 if free is None else max(0, needed - free)


def time_is_short(left: Sequence[float | None], needed: Sequence[float]) -> bool:
    """Whether a save would be cut off.

    Args:
        left: for each rank, the seconds until it is killed; None where nobody knows.
        needed: for each rank, how long saves have taken (seconds); 0 where none was measured.
    """
    known = [seconds for seconds in left if seconds is not None]
    return bool(known) and min(known) < max(needed, default=0.0)
