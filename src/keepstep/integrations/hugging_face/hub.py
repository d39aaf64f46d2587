"""The Hub as a second place for a Trainer's checkpoints: committed ones only, and a way back from there."""

import logging
from pathlib import Path
from typing import Any

from keepstep.checkpoint.claim import FolderClaim
from keepstep.dist.world import World

logger = logging.getLogger("keepstep")


def fetch_newer(trainer: Any, folder: Path, world: World, claim: FolderClaim) -> None:
    """Fetch the checkpoint on the Hub, where that is newer than all in the folder. Collective."""


class Pushes:
    """Pushes committed checkpoints, beside training."""

    def __init__(self, trainer: Any, folder: Path) -> None:
        self._trainer, self._folder = trainer, folder

    def push(self, checkpoint: Path) -> None:
        """Push what was just committed."""
        self._trainer._push_from_checkpoint(str(checkpoint))

    def finish(self) -> None:
        """Wait for what is under way."""

    def close(self) -> None:
        """Give back what is held."""
