"""What ranks tell each other of stop requests and of the time that is left."""

from collections.abc import Sequence
from dataclasses import dataclass

from keepstep.plan.elastic import Launcher
from keepstep.plan.space import time_is_short


@dataclass(frozen=True)
class Told:
    """What each rank tells the others at the end of a step: clocks and signals of one count for all.

    Attributes:
        stop: a stop was requested of it.
        is_over: no save is under way there.
        seconds_left: until it is killed; None where it does not know.
        expected_seconds: how long saves have taken there; 0 where none was measured.
        launcher: that has started it; None without torch elastic.
        is_due: this step is to be saved; what the main process says counts.
    """

    stop: bool
    is_over: bool
    seconds_left: float | None
    expected_seconds: float
    launcher: Launcher | None = None
    is_due: bool = False


def launchers_asked(told: Sequence[Told]) -> list[Launcher | None]:
    """The launchers of the ranks of which a stop was requested."""
    return [one.launcher for one in told if one.stop]


def why_no_time(told: Sequence[Told]) -> str:
    """Why a save would be cut off; empty when there is time for it."""
    left, needed = [one.seconds_left for one in told], [one.expected_seconds for one in told]
    if not time_is_short(left, needed):
        return ""
    seconds = min(one for one in left if one is not None)
    return f"{max(0.0, seconds):.0f} s are left, and a save takes {max(needed):.0f} s"
