"""The Hugging Face Trainer, and those built on it (TRL, PEFT): checkpoints that a kill cannot break.

One line for one trainer, before `train()`:

    keepstep.integrations.hugging_face.make_resumable(trainer)

or, for scripts that cannot be edited, once in the process and for all trainers:

    keepstep.integrations.hugging_face.enable()
"""

from typing import Any

from keepstep.integrations.hugging_face.hooks import disable, enable, install
from keepstep.integrations.hugging_face.options import Options
from keepstep.integrations.hugging_face.session import SESSION, Session


def make_resumable(trainer: Any, **options: Any) -> Any:
    """Let this trainer save, verify and resume through keepstep. Returns the trainer.

    Args:
        trainer: a `transformers.Trainer` or a subclass of it.
        **options: see `Options`.

    Raises:
        ConfigError: an option does not work, or the trainer is set up in a way that cannot be resumed.
    """
    install()
    setattr(trainer, SESSION, Session(trainer, Options(**options)))
    return trainer


__all__ = ["Options", "disable", "enable", "make_resumable"]
