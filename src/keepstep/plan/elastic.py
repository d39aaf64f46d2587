"""What a restart by torch elastic means: it restarts after failures, after stops, and when machines come and go."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Launcher:
    """The agent of torch elastic that has started a rank, as it was when it did.

    Attributes:
        run: of the job, the same on all machines.
        agent: tells the agents of a run apart.
        restarts: how often this agent has started its ranks again after they failed. Machines that come or go do not
            count, and agents of one run count apart.
    """

    run: str
    agent: str
    restarts: int


def is_restart_after_stop(asked: Iterable[Launcher], me: Launcher | None) -> bool:
    """Whether an attempt that was told to stop was taken for a failed one, and started again.

    When machines join, an agent signals its ranks in the same way as somebody who wants the job to end; but then it
    does not count a restart. The ranks of other agents leave with them, and their agents do count one: so only those
    say anything whose ranks got the signal.

    Args:
        asked: agents of the ranks that got the signal.
        me: agent of a rank that starts now; None without one.
    """
    return me is not None and any(
        (one.run, one.agent) == (me.run, me.agent) and me.restarts > one.restarts for one in asked
    )
