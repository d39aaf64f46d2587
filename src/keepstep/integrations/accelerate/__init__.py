"""Loops with Hugging Face Accelerate whose checkpoints are committed at once, verified, and resume exactly."""

from keepstep.integrations.accelerate.checkpoints import Checkpoints
from keepstep.integrations.accelerate.functions import close, load_state, resumable, save_state
from keepstep.integrations.accelerate.loader import ResumableLoader
from keepstep.integrations.accelerate.patch import disable, enable

__all__ = [
    "Checkpoints",
    "ResumableLoader",
    "close",
    "disable",
    "enable",
    "load_state",
    "resumable",
    "save_state",
]
