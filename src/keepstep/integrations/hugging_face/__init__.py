"""The Hugging Face Trainer, and those built on it (TRL, PEFT): checkpoints that a kill cannot break.

One line for one trainer, before `train()`:

    keepstep.integrations.hugging_face.make_resumable(trainer)

or, for scripts that cannot be edited, once in the process and for all trainers:

    keepstep.integrations.hugging_face.enable()
"""

from keepstep.integrations.hugging_face.enabling import disable, enable, make_resumable
from keepstep.integrations.hugging_face.options import Options

__all__ = ["Options", "disable", "enable", "make_resumable"]
