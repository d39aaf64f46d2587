"""Leaves a job when a stop was requested."""

from keepstep.checkpoint.checkpointer import Checkpointer
from keepstep.errors import KeepstepError, StopRequested


def leave_if_asked(checkpointer: Checkpointer, step: int, total: int) -> None:
    """End the job if a stop was requested. At the last step it goes on: what is left there is the end products.

    Raises:
        StopRequested: the step is saved.
        KeepstepError: it is not, since checkpointing is disabled.
    """
    if not checkpointer.stop_requested or step >= total:
        return
    if checkpointer.config.period_steps == "disable":
        raise KeepstepError(f"stopped on request after step {step}; checkpointing is disabled, so nothing was saved")
    raise StopRequested(f"stopped on request after step {step}, which is saved; the same command continues")
