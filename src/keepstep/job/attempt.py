"""One attempt of a job: holds its folder as long as it works there, and notes how it ended."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import TracebackType

import torch

from keepstep.checkpoint.claim import FolderClaim, claim_folder
from keepstep.checkpoint.fork import Line, announce_line, begin_line, find_line
from keepstep.checkpoint.fresh import begin_anew
from keepstep.checkpoint.identity import RunIdentity
from keepstep.checkpoint.mirrors.run_mirrors import RunMirrors
from keepstep.checkpoint.resume import Elsewhere
from keepstep.checkpoint.stop import StopNotice
from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.dist.launch import process_group
from keepstep.dist.world import World, current_world
from keepstep.errors import StopRequested
from keepstep.job.stop import noting_stops
from keepstep.plan.resume import ResumeDecision
from keepstep.storage.exit_note import write_exit

logger = logging.getLogger("keepstep")


@contextmanager
def attempt_of(
    folder: Path, config: CheckpointingConfig, notice: StopNotice | None, *, has_name: bool = True
) -> Iterator["Attempt"]:
    """Be one of the launcher's ranks, and note stop signals, for the duration of an attempt.

    Args:
        folder: the run's folder.
        config: of its checkpoints.
        notice: notes stop signals already; None for one that does so as long as the attempt lasts.
        has_name: as of `Attempt`.
    """
    with noting_stops(notice, config.stop_signals) as noted, process_group() as device:
        world = current_world(timedelta(seconds=config.timeout_seconds))
        with Attempt(folder, config, world, device, noted, has_name=has_name) as attempt:
            yield attempt


def judge_newest(identity: RunIdentity, decision: ResumeDecision, brought: Sequence[Elsewhere]) -> None:
    """Let the guard judge what is to be resumed from, before anything is built, loaded or written. Collective."""
    if brought:
        identity.know(brought[0].step, brought[0].where, brought[0].record)
        identity.guard(brought[0].step)
    elif decision.candidates:
        identity.guard(decision.candidates[0])


class Attempt:
    """Entered on all ranks around what a job does. It takes nothing before `claim` or `begin_anew` is called.

    Args:
        folder: the run's folder.
        config: of its checkpoints; a job that never saves holds nothing.
        world: the ranks.
        device: of this rank.
        notice: where stop signals are noted.
        has_name: the folder is that of a run, called by its name; else it is save_dir itself.
    """

    def __init__(
        self,
        folder: Path,
        config: CheckpointingConfig,
        world: World,
        device: torch.device,
        notice: StopNotice,
        *,
        has_name: bool = True,
    ) -> None:
        self.folder, self._has_name = folder, has_name
        self.world, self.device, self.notice = world, device, notice
        self._saves = config.period_steps != "disable"
        self._mirrors, self._stops_on_damage = config.mirror, config.on_damage == "stop"
        self._claim: FolderClaim | None = None
        self._above = 0
        self._works = False

    def begin_anew(self) -> None:
        """Set aside the run that is there. Collective. Raises as `claim`, and ResumeError where it cannot be moved."""
        mirrors = self._run_mirrors()
        mirrors.glance()
        self._above = mirrors.attempt
        self._take()
        assert self._claim is not None
        begin_anew(self.folder, self._claim, self.world)

    def bring(self, last_step: int | None = None) -> tuple[Elsewhere, ...]:
        """Fetch the checkpoint to go on from, where only a mirror has it. Collective.

        Args:
            last_step: of the job: its checkpoint is fetched whole, since an export is made of it.

        Returns:
            Checkpoints that the resume reads where they lie; empty where what is wanted is in the folder.

        Raises:
            ResumeError: a mirror cannot be asked.
            RunInUseError: another job holds the folder.
        """
        mirrors = self._run_mirrors()

        def take() -> FolderClaim:
            self._above = mirrors.attempt
            self._take()
            assert self._claim is not None
            return self._claim

        brought = mirrors.bring(take if self._saves else None, whole_from=last_step)
        self._above = mirrors.attempt
        return brought

    def _bring_parent(self, step: int) -> None:
        """The checkpoint that a line is begun from may be on a mirror only. Its folder is held while it comes."""
        mirrors, claims = self._run_mirrors(), list[FolderClaim]()

        def take() -> FolderClaim:
            claims.append(claim_folder(self.folder, self.world, mirrors.attempt))
            return claims[-1]

        try:
            mirrors.bring(take if self._saves else None, step, whole_from=0)
        finally:
            for claim in claims:
                claim.release()

    def _run_mirrors(self) -> RunMirrors:
        run = self.folder.name if self._has_name else ""
        return RunMirrors(self._mirrors, self.folder, run, self.world, stops_on_damage=self._stops_on_damage)

    def _take(self) -> None:
        self._claim = self._claim or claim_folder(self.folder, self.world, self._above)

    def go_back(self, step: int) -> Line | None:
        """From now on be an attempt of the line that was begun from this step of the run, or is to be. Collective.

        Returns:
            The line, when it is still to be begun, by `begin`.
        """
        self._bring_parent(step)
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
        mirrors = self._run_mirrors()
        mirrors.glance()
        self._above = mirrors.attempt
        self._take()
        assert self._claim is not None
        begin_line(line, self._claim, self.world)

    def claim(self) -> FolderClaim | None:
        """Take the folder; None for a job that never saves. Collective.

        Raises:
            RunInUseError: another job holds it.
            ResumeError: the ranks do not share it.
        """
        self._works = True
        if self._saves:
            self._take()
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
