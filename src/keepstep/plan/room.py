"""Whether host buffers for asynchronous saves fit into memory."""

from collections.abc import Sequence
from dataclasses import dataclass

# What must stay free: the job itself still grows.
_SPARE = 0.1


@dataclass(frozen=True)
class Need:
    """What one rank needs: bytes still to be taken, and what its machine says is available (None: it does not say)."""

    host: str
    size: int
    available: int | None


@dataclass(frozen=True)
class Room:
    """The decision for all ranks, and why."""

    fits: bool
    reason: str


def decide_room(needs: Sequence[Need]) -> Room:
    """All ranks get buffers, or none does. Ranks on one host share its memory."""
    by_host: dict[str, list[Need]] = {}
    for need in needs:
        by_host.setdefault(need.host, []).append(need)
    told = []
    for host, own in by_host.items():
        size = sum(need.size for need in own)
        known = [need.available for need in own if need.available is not None]
        if not known:
            continue
        available = min(known)
        told.append((available * (1 - _SPARE) - size, host, size, available))
    if not told:
        return Room(True, f"host buffers of {_gib(max(need.size for need in needs))} a rank")
    left, host, size, available = min(told)
    text = f"host buffers of {_gib(size)} on {host}, where {_gib(available)} are available"
    return Room(left >= 0, text)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
