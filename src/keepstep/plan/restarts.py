"""Whether a job that ended is started again at once, on the same machine (`keepstep train --restarts`)."""

from dataclasses import dataclass

_FINISHED = 0
# Each says why another attempt would come to the same, or must not be made.
_FINAL = {
    2: "its configuration cannot work",
    3: "it was refused",
    4: "no checkpoint is good",
    75: "it was asked to stop",
}


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended.

    Attributes:
        code: the job's exit code; 1 for ranks that died.
        start: completed steps that it began from; None where it never came so far.
        has_stepped: whether it has completed a step of its own.
        is_stopped: a stop was requested of the launcher meanwhile.
    """

    code: int
    start: int | None = None
    has_stepped: bool = False
    is_stopped: bool = False


@dataclass(frozen=True)
class RestartDecision:
    """Whether to start again, and why."""

    restart: bool
    reason: str


def decide(end: AttemptEnd, used: int, allowed: int) -> RestartDecision:
    """Judge the end of an attempt.

    Only a failure in the midst of training is one that another attempt may get past. One before the first step (an
    import, a data set that is not there, a checkpoint that kills the job while it loads) comes again; so of each
    checkpoint one attempt at most fails that way.

    Args:
        end: of the attempt.
        used: restarts before it.
        allowed: restarts in all.
    """
    if end.code == _FINISHED:
        return RestartDecision(False, "it has finished")
    if end.code in _FINAL:
        return RestartDecision(False, f"{_FINAL[end.code]} (exit code {end.code})")
    if end.is_stopped:
        return RestartDecision(False, "it was asked to stop")
    if not end.has_stepped:
        where = "before it had looked for checkpoints" if end.start is None else f"before step {end.start + 1}"
        return RestartDecision(False, f"it failed {where}, and would fail there again")
    if used >= allowed:
        return RestartDecision(False, f"all {allowed} restarts are used" if allowed else "no restarts are allowed")
    return RestartDecision(True, f"it failed in training; restart {used + 1} of {allowed}")
