"""The Trainer's own just-in-time checkpoints: taken over, since they begin in the middle of a step."""

import signal
from typing import Any


def take_over_jit(trainer: Any) -> None:
    """Take the callback away that saves on SIGTERM, and its handler: keepstep saves at the end of the step."""
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ != "JITCheckpointCallback":
            continue
        trainer.callback_handler.callbacks.remove(callback)
        manager = getattr(callback, "jit_manager", None)
        own = getattr(manager, "_sigterm_handler", None)
        if manager is not None and signal.getsignal(signal.SIGTERM) == own:
            before = manager._original_sigterm_handler
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
