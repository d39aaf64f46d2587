"""The facade that a training loop talks to."""

import logging
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from keepstep.checkpoint.probe import Probe, save_dir, settings_from_environment
from keepstep.checkpoint.resume import Resumed, resume
from keepstep.checkpoint.save import SaveRequest, apply_retention, save
from keepstep.checkpoint.stop import StopNotice
from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.dist.agree import agreed
from keepstep.dist.world import World, current_world
from keepstep.errors import ConfigError, SaveError
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
        if self._handle_signals:
            self._notice.install()
        self._prepare()
        outcome = resume(self.folder, self._components, self._world, step, self._optional)
        self._last_step = outcome.step or None
        self._resumed = True
        if self.config.period_steps != "disable":
            self._try_out()
        self._log_start(outcome)
        if self._probe is not None:
            self._probe.started(outcome.step, self.total_steps)
        return outcome.step

    def _try_out(self) -> None:
        """Meet now, and not after hours, a folder that cannot be made or state that cannot be stored."""
        with agreed(self._world, f"preparing to save to {self.folder}", SaveError):
            if self._world.rank == 0:
                make_folders(self.folder)
            collect_state(self._components)

    def save_if_due(self, step: int) -> bool:
        """Save if the period asks for it at this step, or a stop was requested. Returns whether it saved.

        Also the place where all ranks agree on a stop: call it after every step.
        """
        if self._probe is not None:
            return self._observe(self._probe, step)
        if any(self._world.gather(self._notice.noted is not None)):
            if not self.stop_requested and self._world.rank == 0:
                logger.warning("stop requested: saving step %d and leaving", step)
            self.stop_requested = True
        if is_save_due(step, self.total_steps, self.config.period_steps):
            return self.save(step)
        return self.save(step) if self.stop_requested else False

    def save(self, step: int) -> bool:
        """Save now, whatever the period. Returns whether it saved: not when `disable` is set or the step is saved.

        Raises:
            SaveError: the same on every rank; nothing was committed, earlier checkpoints are untouched.
        """
        if step < 0:
            raise ValueError(f"step must not be negative, not {step}")
        if self._probe is not None:
            return self._observe(self._probe, step)
        if self.config.period_steps == "disable" or step == self._last_step:
            return False
        return self._save(step)

    def _observe(self, probe: Probe, step: int) -> bool:
        """Under a twin check the check says when to save, and that the run ends there as in a crash."""
        probe.observe(step)
        if probe.is_over(step):
            if step == probe.settings.stop:
                self._save(step)
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
        attempt, record = self._agree_attempt(), self._run_record()
        request = SaveRequest(self.folder, step, attempt, self._last_step, self._resumed, record)
        save(request, self._components, self._world)
        self._last_step = step
        if self._world.rank == 0:
            apply_retention(self.folder, self.config.num_to_keep, step, request.attempt)
        self._world.gather(None)
        return True

    def wait(self) -> None:
        """Wait for a save under way. A synchronous save is over when `save` returns."""

    def close(self) -> None:
        """Wait for a save under way and give the signals back. May be called twice."""
        self.wait()
        self._notice.restore()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
