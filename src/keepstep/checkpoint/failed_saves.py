"""Saves that failed, where a job may go on without them."""

import logging

from keepstep.checkpoint.run_folder import RunFolder
from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.dist.world import World
from keepstep.errors import SaveError
from keepstep.storage.save_log import SaveLog

logger = logging.getLogger("keepstep")


class FailedSaves:
    """Counts them, and decides which ends the job. All ranks hear of the same failures, so they decide alike.

    Attributes:
        count: all that failed.
    """

    def __init__(self, config: CheckpointingConfig, world: World, folder: RunFolder) -> None:
        self._config, self._world, self._folder = config, world, folder
        self.count = 0
        self._in_a_row = 0

    def take(self, error: SaveError, step: int, *, is_needed: bool) -> None:
        """Take a failure. Collective.

        Args:
            error: what was raised.
            step: whose save failed.
            is_needed: no later save makes up for it: it is the last step's, or that of a stop.

        Raises:
            SaveError: `error`, where the job is not to go on.
        """
        self.count += 1
        self._in_a_row += 1
        most = self._config.max_failed_saves
        if self._config.on_save_error == "stop" or is_needed or self._in_a_row >= most:
            raise error
        if self._folder.is_lost():  # no later save could succeed
            raise error
        if self._world.rank == 0:
            logger.warning("%s. Going on without it (failed save %d of %d)", error, self._in_a_row, most)
            SaveLog(self._folder.path).failed(step, self._folder.take().attempt, str(error))

    def forget(self) -> None:
        """One has succeeded: those before it were not in a row with what comes."""
        self._in_a_row = 0
