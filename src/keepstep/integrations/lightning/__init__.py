"""keepstep inside Lightning's Trainer: committed, verified checkpoints, and resumes from the newest good one.

Importing this imports neither Lightning nor torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from keepstep.integrations.lightning.choose import newest_verified
from keepstep.integrations.lightning.enable import enable

if TYPE_CHECKING:
    from keepstep.integrations.lightning.resumable import make_resumable

__all__ = ["VerifiedCheckpointIO", "enable", "make_resumable", "newest_verified"]


def __getattr__(name: str) -> Any:
    if name == "make_resumable":
        return import_module("keepstep.integrations.lightning.resumable").make_resumable
    if name == "VerifiedCheckpointIO":
        return import_module("keepstep.integrations.lightning.checkpoint_io").default_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
