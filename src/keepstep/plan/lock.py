"""Who holds a run's folder, and whether somebody else may take it."""

from dataclasses import dataclass
from enum import Enum

# A holder gives a sign of life that often, and is taken for gone after so long without one (seconds).
BEAT_SECONDS = 5.0
LEASE_SECONDS = 60.0


@dataclass(frozen=True)
class Process:
    """One process, among all that ever were.

    Attributes:
        host: the machine's name, for messages: names repeat among containers.
        pid: repeats among containers as well, and in time.
        boot: of the kernel that it runs under; empty where the system does not tell.
        namespace: in which `pid` counts; empty where the system does not tell.
        started: when, in the kernel's ticks.
    """

    host: str
    pid: int
    boot: str = ""
    namespace: str = ""
    started: str = ""

    def is_neighbour_of(self, other: "Process") -> bool:
        """Whether one kernel can tell each of them whether the other lives."""
        return bool(self.boot and self.namespace) and (self.boot, self.namespace) == (other.boot, other.namespace)


class Claim(Enum):
    """What may be done with a lock that somebody has left or holds."""

    OWN = "own"
    HELD = "held"
    GONE = "gone"
    UNKNOWN = "unknown"


def judge(holder: Process | None, me: Process, *, lives: bool, silent: float, lease: float = LEASE_SECONDS) -> Claim:
    """Judge a lock.

    Where one kernel knows both, its word counts, and a process that hangs still holds. Elsewhere (other hosts, other
    containers) only silence tells: nobody can ask a machine that was reclaimed.

    Args:
        holder: who has written the lock; None when it cannot be read.
        me: who asks.
        lives: whether this kernel has the holder; counts only among neighbours.
        silent: seconds since its last sign of life, by the clock of the file system.
        lease: seconds of silence after which it is gone.
    """
    if holder is not None and holder.is_neighbour_of(me):
        if holder == me:
            return Claim.OWN
        return Claim.HELD if lives else Claim.GONE
    return Claim.GONE if silent > lease else Claim.UNKNOWN
