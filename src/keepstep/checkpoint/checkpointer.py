"""The facade that a training loop talks to."""

import logging
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from keepstep.checkpoint.garbage import no_collections
from keepstep.checkpoint.probe import Probe, save_dir, settings_from_environment
from keepstep.checkpoint.resume import Resumed, resume
from keepstep.checkpoint.save import SaveRequest
from keepstep.checkpoint.saver import Saver
from keepstep.checkpoint.stop import StopNotice
from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.dist.agree import agreed
from keepstep.dist.world import World, current_world
from keepstep.errors import ConfigError, KeepstepError, SaveError
from keepstep.plan.schedule import is_save_due
from keepstep.provenance.record import RunFacts, collect
from keepstep.state.job_state import JobState
from keepstep.state.job_state import collect as collect_state
from keepstep.state.model import ModelComponent
from keepstep.storage.local import make_folders
from keepstep.storage.survey import survey

logger = logging.getLogger("keepstep")


class Checkpointer:
    """Saves and restores a job's whole state. All ranks create one and call its methods at the same steps.

    Args:
        config: where and how often.
        state: what to save.
        run_name: name of the run; its folder is `<save_dir>/<run_name>`, or `<save_dir>` without one.
        total_steps: the last step, which is saved whatever the period; None when it is not known.
        facts: more about the job for run.json.
        world: the ranks; by default those of torch.distributed.
        handle_signals: note SIGTERM and SIGINT from `resume` to `close`, for `stop_requested`.

    Raises:
        ConfigError: `run_name` does not work as a folder name, or `total_steps` is not positive, or is missing where
            only the last step is saved.
    """

    def __init__(
        self,
        config: CheckpointingConfig,
        state: JobState,
        run_name: str | None = None,
        total_steps: int | None = None,
        *,
        facts: RunFacts | None = None,
        world: World | None = None,
        handle_signals: bool = True,
    ) -> None:
        if run_name is not None and (not run_name or Path(run_name).name != run_name or run_name.startswith(".")):
            raise ConfigError(f"run_name = {run_name!r}: must work as a folder name")
        if total_steps is not None and total_steps < 1:
            raise ConfigError(f"total_steps = {total_steps}: must be 1 or more")
        if config.period_steps == "last_step" and total_steps is None:
            raise ConfigError('period_steps = "last_step" needs total_steps: without it no step is the last')
        self.config = config
        observed = settings_from_environment()
        self.folder = save_dir(config.save_dir) / (run_name or "")
        self.total_steps = total_steps
        self.stop_requested = False
        self._world = world or current_world()
        self._components = state.components(self._world)
        self._optional = state.optional
        self._probe = Probe(observed, self._components, self._world) if observed else None
        self._facts = facts or RunFacts(run_name)
        self._record: Mapping[str, Any] | None = None
        self._attempt: int | None = None
        self._saver = Saver(self._components, self._world, in_background=config.mode == "async" and not observed)
        self._is_warm = False
        self._last_step: int | None = None
        self._resumed = False
        self._notice = StopNotice()
        self._handle_signals = handle_signals

    def resume(self, step: int | None = None) -> int:
        """Restore the newest good checkpoint, or the one of `step`.

        Returns:
            Completed steps: 0 for a fresh start.

        Raises:
            CheckpointNotFoundError: `step` was asked for and is not there.
            DamagedCheckpointError: checkpoints are there, and none is good.
            StateMismatchError: the checkpoint does not fit the registered state; nothing was changed.
            UnsupportedStateError: the registered state holds a value that cannot be stored.
            ResumeError, SaveError: a rank failed, or the folder cannot be made; the same error on all ranks.
        """
        self.wait()
        if self._handle_signals:
            self._notice.install()
        self._prepare()
        outcome = resume(self.folder, self._components, self._world, step, self._optional)
        self._last_step = outcome.step or None
        self._resumed = True
        if self.config.period_steps != "disable":
            self._try_out()
            self._warm_up(outcome.step)
        self._log_start(outcome)
        if self._probe is not None:
            self._probe.started(outcome.step, self.total_steps)
        return outcome.step

    def _try_out(self) -> None:
        """Meet now, and not after hours, a folder that cannot be made or state that cannot be stored."""
        with agreed(self._world, f"preparing to save to {self.folder}", SaveError):
            if self._world.rank == 0:
                make_folders(self.folder)
            with no_collections():
                collect_state(self._components)

    def save_if_due(self, step: int) -> bool:
        """Save if the period asks for it at this step, or a stop was requested. Returns whether it saved.

        Also the place where all ranks agree on a stop, and hear how a save in the background ended: call it after
        every step.

        Raises:
            SaveError: this save, or the one in the background, failed; the same on every rank at the same step.
        """
        if self._probe is not None:
            return self._observe(self._probe, step)
        told = self._world.gather((self._notice.noted is not None, self._saver.is_over))
        is_over = all(over for _, over in told)
        if is_over:
            self.wait()
        if any(stop for stop, _ in told):
            if not self.stop_requested and self._world.rank == 0:
                logger.warning("stop requested: saving step %d and leaving", step)
            self.stop_requested = True
        is_due = is_save_due(step, self.total_steps, self.config.period_steps)
        if self.stop_requested:
            saved = self.save(step)
            self.wait()
            return saved
        if is_due and not is_over and self.config.when_busy == "skip" and step != self.total_steps:
            self._saver.skip(self._request(step))
            return False
        if is_due:
            return self.save(step)
        if not self._is_warm:
            self._is_warm = True
            self._warm_up(step)
        return False

    def _warm_up(self, step: int) -> None:
        """Let the first save in the background cost what the others do. After the first step there are moments too."""
        if self.config.mode == "async" and self.config.period_steps != "disable":
            self._prepare()
            self._saver.prepare(step)

    def save(self, step: int) -> bool:
        """Save now, whatever the period. Returns whether it saved: not when `disable` is set or the step is saved.

        In async mode it returns when the state is copied; how the save ends is told by the next call, or by `wait`.

        Raises:
            SaveError: the same on every rank; nothing was committed, earlier checkpoints are untouched.
        """
        if step < 0:
            raise ValueError(f"step must not be negative, not {step}")
        if self._probe is not None:
            return self._observe(self._probe, step)
        if self.config.period_steps == "disable":
            return False
        self.wait()
        return False if step == self._last_step else self._save(step)

    def _observe(self, probe: Probe, step: int) -> bool:
        """Under a twin check the check says when to save, and that the run ends there as in a crash."""
        probe.observe(step)
        if probe.is_over(step):
            if step == probe.settings.stop:
                self._save(step)
                self.wait()
            self._world.gather(None)
            probe.leave()
        return False

    def _prepare(self) -> None:
        """Let parts meet that must: here no rank has failed, and all of them come by."""
        for component in self._components:
            if isinstance(component, ModelComponent):
                component.prepare()

    def _save(self, step: int) -> bool:
        self._prepare()
        self._saver.start(self._request(step))
        self._note_saved()
        return True

    def _request(self, step: int) -> SaveRequest:
        return SaveRequest(
            folder=self.folder,
            step=step,
            attempt=self._agree_attempt(),
            parent=self._last_step,
            resumed=self._resumed,
            record=self._run_record(),
            components=tuple(component.name for component in self._components),
            num_to_keep=self.config.num_to_keep,
        )

    def _note_saved(self) -> None:
        if self._saver.last_step is not None:
            self._last_step = self._saver.last_step

    @property
    def is_idle(self) -> bool:
        """Whether no save is under way on this rank."""
        return self._saver.is_over

    def wait(self) -> None:
        """Wait for a save under way; nothing to do when there is none.

        Raises:
            SaveError: it failed; nothing was committed.
        """
        try:
            self._saver.wait()
        finally:
            self._note_saved()

    def close(self) -> None:
        """Wait for a save under way, and give signals and host buffers back. May be called twice.

        Raises:
            SaveError: the save failed.
        """
        try:
            self.wait()
        finally:
            self._saver.release()
            self._notice.restore()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # The error that ended the block is the one to be seen; other ranks may be gone.
        self._saver.abandon()
        try:
            self.close()
        except KeepstepError as second:
            logger.error("besides, the save under way failed: %s", second)

    def _agree_attempt(self) -> int:
        if self._attempt is None:
            with agreed(self._world, f"looking into {self.folder}", SaveError):
                last = survey(self.folder).last_attempt if self._world.rank == 0 else 0
            self._attempt = self._world.broadcast(last) + 1
        return self._attempt

    def _run_record(self) -> Mapping[str, Any]:
        if self._record is None:
            with agreed(self._world, "collecting the run record", SaveError):
                self._record = collect(self._facts, self._world.size) if self._world.rank == 0 else {}
        return self._record

    def _log_start(self, outcome: Resumed) -> None:
        if self._world.rank != 0:
            return
        if outcome.path is None:
            logger.info("starting from the first step")
            return
        logger.info("resumed from step %d (%s)", outcome.step, outcome.path)
        if outcome.world_size not in (None, self._world.size):
            logger.warning("it was saved by %s ranks; this job has %d", outcome.world_size, self._world.size)
