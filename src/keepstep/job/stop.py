"""Notes stop signals for the whole time of a job, and leaves it when one came."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from keepstep.checkpoint.checkpointer import Checkpointer
from keepstep.checkpoint.stop import StopNotice
from keepstep.errors import KeepstepError, StopRequested


@contextmanager
def noting_stops(notice: StopNotice | None, signals: Sequence[str]) -> Iterator[StopNotice]:
    """Note stop signals during the body.

    Args:
        notice: one that is installed already and stays so; None for one of its own.
        signals: names of the signals.
    """
    if notice is not None:
        notice.install(signals)
        yield notice
        return
    own = StopNotice()
    own.install(signals)
    try:
        yield own
    finally:
        own.restore()


def leave_before(checkpointer: Checkpointer, start: int) -> None:
    """End the job before its first step if a stop was requested until now. Collective.

    Raises:
        StopRequested: nothing new is to be saved.
    """
    if checkpointer.check_stop(start):
        saved = f"step {start} is saved" if start else "nothing was to be saved yet"
        raise StopRequested(f"stopped on request before step {start + 1}; {saved}; the same command continues")


def leave_if_asked(checkpointer: Checkpointer, step: int, total: int) -> None:
    """End the job if a stop was requested. At the last step it goes on: what is left there is the end products.

    Raises:
        StopRequested: the step is saved, or there was no time and an earlier one is.
        KeepstepError: nothing is saved: checkpointing is disabled, or there was no time.
    """
    if not checkpointer.stop_requested or step >= total:
        return
    if checkpointer.config.period_steps == "disable":
        raise KeepstepError(f"stopped on request after step {step}; checkpointing is disabled, so nothing was saved")
    saved = checkpointer.saved_step
    if saved is None:
        raise KeepstepError(f"stopped on request after step {step}; there was no time to save, and nothing is saved")
    if saved < step:
        raise StopRequested(
            f"stopped on request after step {step}; there was no time to save it; the same command continues from step "
            f"{saved}, which is saved"
        )
    raise StopRequested(f"stopped on request after step {step}, which is saved; the same command continues")
