"""One attempt of a job: holds its folder as long as it works there, and notes how it ended."""

import logging
from pathlib import Path
from types import TracebackType

from keepstep.checkpoint.claim import FolderClaim, claim_folder
from keepstep.checkpoint.fresh import begin_anew
from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.dist.world import World
from keepstep.errors import StopRequested
from keepstep.storage.exit_note import write_exit

logger = logging.getLogger("keepstep")


class Attempt:
    """Entered on all ranks around what a job does. It takes nothing before `claim` or `begin_anew` is called.

    Args:
        folder: the run's folder.
        config: of its checkpoints; a job that never saves holds nothing.
        world: the ranks.
    """

    def __init__(self, folder: Path, config: CheckpointingConfig, world: World) -> None:
        self.folder = folder
        self._saves = config.period_steps != "disable"
        self._world = world
        self._claim: FolderClaim | None = None
        self._works = False

    def begin_anew(self) -> None:
        """Set aside the run that is there. Collective. Raises as `claim`, and ResumeError where it cannot be moved."""
        self._claim = self._claim or claim_folder(self.folder, self._world)
        begin_anew(self.folder, self._claim, self._world)

    def claim(self) -> FolderClaim | None:
        """Take the folder; None for a job that never saves. Collective.

        Raises:
            RunInUseError: another job holds it.
            ResumeError: the ranks do not share it.
        """
        self._works = True
        if self._claim is None and self._saves:
            self._claim = claim_folder(self.folder, self._world)
        return self._claim

    def __enter__(self) -> "Attempt":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._claim is None:
            return
        # A stop is noted where it is agreed on: it knows the step.
        if self._world.rank == 0 and self._works and not isinstance(error, StopRequested) and not self._claim.is_lost:
            self._note(error)
        self._claim.release()

    def _note(self, error: BaseException | None) -> None:
        try:
            if error is None:
                write_exit(self.folder, "finished", 0)
            else:
                code = getattr(error, "exit_code", 1)
                write_exit(self.folder, "failed", code, error=f"{type(error).__name__}: {error}")
        except OSError as problem:
            logger.warning("could not note in %s how this attempt ended: %s", self.folder, problem)
