"""Which rank is lost when a meeting of ranks fails: the error of the network tells at best an address."""

import threading
import time
from collections.abc import Sequence

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

_PAUSE = 0.05
# Ranks that wait at the same meeting give up within seconds of each other.
LONGEST_SECONDS = 10.0
_SHOWN = 4


def who_is_lost(store: Store, rank: int, size: int, seconds: float) -> list[int] | None:
    """Call the roll of the ranks whose meeting has failed.

    Args:
        store: that the ranks met at. A copy of its connection is used, which may hang.
        rank, size: of this world.
        seconds: that others are waited for.

    Returns:
        The ranks that did not answer, perhaps none; None when the store itself cannot be reached.
    """
    answered: set[int] = set()
    is_reached = threading.Event()

    def call() -> None:
        try:
            own = PrefixStore("keepstep/roll", store.clone() if hasattr(store, "clone") else store)
            own.set(str(rank), "here")
            deadline = time.monotonic() + seconds
            while len(answered) < size and time.monotonic() < deadline:
                answered.update(other for other in range(size) if other not in answered and own.check([str(other)]))
                is_reached.set()
                time.sleep(_PAUSE)
        except RuntimeError:
            return  # it is gone: whoever served it has ended

    # A request to a host that is cut off is waited for without end.
    thread = threading.Thread(target=call, name="keepstep-roll", daemon=True)
    thread.start()
    thread.join(seconds + 1)
    return [other for other in range(size) if other not in answered] if is_reached.is_set() else None


def is_silence(error: str) -> bool:
    """Whether the network's error tells of a time that is over, and not of a connection that was closed."""
    return "timed out" in error.lower()


def lost_text(missed: Sequence[int] | None, rank: int, hosts: Sequence[str], error: str) -> str:
    """Who is lost, in words.

    Args:
        missed: the ranks that did not answer, as far as it is known; None when nobody could be asked.
        rank: that speaks.
        hosts: of each rank, as far as they are known.
        error: the network's.
    """
    def name(one: int) -> str:
        return f"rank {one} ({hosts[one]})" if one < len(hosts) else f"rank {one}"

    why = error.splitlines()[0] if error else "no reason was given"
    if missed is None:
        return f"{name(rank)} has lost {name(0)}, or the host of the launcher, where the ranks meet ({why})"
    if not missed:
        return f"{name(rank)} has lost the connection to another rank, which says itself why it ended ({why})"
    names = ", ".join(name(one) for one in missed[:_SHOWN])
    more = f" and {len(missed) - _SHOWN} more" if len(missed) > _SHOWN else ""
    return f"no answer from {names}{more} ({why})"
