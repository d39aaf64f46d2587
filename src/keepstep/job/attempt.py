"""One attempt of a job: holds its folder as long as it works there, and notes how it ended."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import TracebackType

import torch

from keepstep.checkpoint.claim import FolderClaim, claim_folder
from keepstep.checkpoint.fork import Line, announce_line, begin_line, find_line
from keepstep.checkpoint.fresh import begin_anew
from keepstep.checkpoint.stop import StopNotice
from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.dist.launch import process_group
from keepstep.dist.world import World, current_world
from keepstep.errors import StopRequested
from keepstep.job.stop import noting_stops
from keepstep.storage.exit_note import write_exit

logger = logging.getLogger("keepstep")


@contextmanager
def attempt_of(folder: Path, config: CheckpointingConfig, notice: StopNotice | None) -> Iterator["Attempt"]:
    """Be one of the launcher's ranks, and note stop signals, for the duration of an attempt.

    Args:
        folder: the run's folder.
        config: of its checkpoints.
        notice: notes stop signals already; None for one that does so as long as the attempt lasts.
    """
    with noting_stops(notice, config.stop_signals) as noted, process_group() as device:
        world = current_world(timedelta(seconds=config.timeout_seconds))
        with Attempt(folder, config, world, device, noted) as attempt:
            yield attempt


class Attempt:
    """Entered on all ranks around what a job does. It takes nothing before `claim` or `begin_anew` is called.

    Args:
        folder: the run's folder.
        config: of its checkpoints; a job that never saves holds nothing.
        world: the ranks.
        device: of this rank.
        notice: where stop signals are noted.
    """

    def __init__(
        self, folder: Path, config: CheckpointingConfig, world: World, device: torch.device, notice: StopNotice
    ) -> None:
        self.folder = folder
        self.world, self.device, self.notice = world, device, notice
        self._saves = config.period_steps != "disable"
        self._claim: FolderClaim | None = None
        self._works = False

    def begin_anew(self) -> None:
        """Set aside the run that is there. Collective. Raises as `claim`, and ResumeError where it cannot be moved."""
        self._claim = self._claim or claim_folder(self.folder, self.world)
        begin_anew(self.folder, self._claim, self.world)

    def go_back(self, step: int) -> Line | None:
        """From now on be an attempt of the line that was begun from this step of the run, or is to be. Collective.

        Returns:
            The line, when it is still to be begun, by `begin`.
        """
        line = find_line(self.folder, step, self.world)
        self.folder = line.folder
        return None if line.is_begun else line

    def begin(self, line: Line) -> None:
        """Begin a new line of the run; `folder` is its folder then. Collective.

        Raises:
            RunInUseError: another job begins the same line.
            ResumeError: it cannot be begun.
        """
        line = announce_line(line, self.world)
        self.folder = line.folder
        self._claim = self._claim or claim_folder(self.folder, self.world)
        begin_line(line, self._claim, self.world)

    def claim(self) -> FolderClaim | None:
        """Take the folder; None for a job that never saves. Collective.

        Raises:
            RunInUseError: another job holds it.
            ResumeError: the ranks do not share it.
        """
        self._works = True
        if self._claim is None and self._saves:
            self._claim = claim_folder(self.folder, self.world)
        return self._claim

    def __enter__(self) -> "Attempt":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._claim is None:
            return
        # A stop is noted where it is agreed on: it knows the step.
        if self.world.rank == 0 and self._works and not isinstance(error, StopRequested) and not self._claim.is_lost:
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
