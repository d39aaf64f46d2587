"""The facade that a training loop talks to."""

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from keepstep.checkpoint.claim import FolderClaim
from keepstep.checkpoint.failed_saves import FailedSaves
from keepstep.checkpoint.garbage import no_collections
from keepstep.checkpoint.identity import RunIdentity
from keepstep.checkpoint.leaving import Told, launchers_asked, why_no_time
from keepstep.checkpoint.mirrors.run_mirrors import RunMirrors
from keepstep.checkpoint.peers.host_folders import folders_of
from keepstep.checkpoint.period import period_of
from keepstep.checkpoint.probe import Probe, save_dir, settings_from_environment
from keepstep.checkpoint.resume import Elsewhere, Resumed, look, refuse, resume
from keepstep.checkpoint.run_folder import RunFolder
from keepstep.checkpoint.save import SaveRequest, apply_retention, nothing_waits
from keepstep.checkpoint.saver import Saver
from keepstep.checkpoint.stop import StopNotice, seconds_left, waiting_time
from keepstep.checkpoint.volatile import warn_if_volatile
from keepstep.checkpoint.watchdog import watched
from keepstep.checkpoint.work_log import Work, WorkLog
from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.dist.agree import agreed
from keepstep.dist.world import World, current_world
from keepstep.errors import ConfigError, KeepstepError, SaveError, StopRequested
from keepstep.plan.policies import rules_of
from keepstep.provenance.record import RunFacts
from keepstep.state.job_state import JobState
from keepstep.state.job_state import collect as collect_state
from keepstep.state.model import ModelComponent
from keepstep.storage.exit_note import this_launcher
from keepstep.storage.survey import SurveyedCheckpoint
from keepstep.storage.tracing import note_start, trace_this_process

logger = logging.getLogger("keepstep")

# Seconds that a job which ends by an error waits for its uploads.
_IMPATIENCE = 20.0


class Checkpointer:
    """Saves and restores a job's whole state. All ranks create one and call its methods at the same steps.

    Args:
        config: where and how often.
        state: what to save.
        run_name: name of the run; its folder is `<save_dir>/<run_name>`, or `<save_dir>` without one.
        total_steps: the last step, which is saved whatever the period; None when it is not known.
        facts: more about the job for run.json.
        world: the ranks; by default those of torch.distributed.
        handle_signals: note the configuration's stop signals from `resume` to `close`, for `stop_requested`.
        claim: the folder, where the caller has taken it already.
        notice: where stop signals are noted, when the caller does that.
        accept: differences to the checkpoint that a resume accepts: "field=value", or "field" for what it is now.
        identity: of the run, where the caller has collected it already; then `facts` and `accept` say nothing.

    Attributes:
        before_save: called on every rank before each save: what must be on disk when a checkpoint exists.

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
        claim: FolderClaim | None = None,
        notice: StopNotice | None = None,
        accept: Sequence[str] = (),
        identity: RunIdentity | None = None,
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
        self._world = world or current_world(timedelta(seconds=config.timeout_seconds))
        self._components = state.components(self._world)
        self._optional = state.optional
        self._loader = state.data
        self._probe = Probe(observed, self._components, self._world) if observed else None
        self._folders = folders_of(config, self._world)
        self._run = RunFolder(self.folder, self._world, claim, taking=self._folders.take)
        facts = replace(facts or RunFacts(run_name), total_steps=total_steps)
        self._identity = identity or RunIdentity(self.folder, self._world, facts, config, accept, state)
        self._identity.describe(state.stages)
        self._mirrors = RunMirrors(
            config.mirror, self.folder, run_name or "", self._world, stops_on_damage=config.on_damage == "stop"
        )
        self._saver = Saver(
            self._components,
            self._world,
            in_background=config.mode == "async" and not observed,
            hang_seconds=config.hang_seconds,
            timeout_seconds=config.timeout_seconds,
            placing=self._folders.placing,
        )
        self._period = period_of(config, self.folder, self._world)
        self._work = WorkLog(self.folder, self._world)
        self.before_save: Callable[[], None] = lambda: None
        self._is_warm = False
        self._last_step: int | None = None
        self._resumed = False
        self._notice = notice or StopNotice()
        self._handle_signals = handle_signals and notice is None
        self._failed = FailedSaves(config, self._world, self._run)
        self._has_saved = False
        self._leaving: float | None = None

    def resume(self, step: int | None = None) -> int:
        """Restore the newest good checkpoint, or the one of `step`.

        Returns:
            Completed steps: 0 for a fresh start.

        Raises:
            CheckpointNotFoundError: `step` was asked for and is not there.
            DamagedCheckpointError: checkpoints are there, and none is good, or the newest is not and `on_damage` is
                "stop".
            GuardRefusedError: data, base weights or another thing that the run was begun with is another one now.
            RunInUseError: another job saves to this folder.
            StateMismatchError: the checkpoint does not fit the registered state; nothing was changed.
            UnsupportedStateError: the registered state holds a value that cannot be stored.
            ResumeError, SaveError: a rank failed, or the folder cannot be made; the same error on all ranks.
        """
        self.wait()
        if self._handle_signals:
            self._notice.install(self.config.stop_signals)
        self._prepare()
        saves = self.config.period_steps != "disable"
        # Now, and not at the first save: by then data sets have opened files and filled caches, and code was committed.
        self._identity.record()
        try:
            with watched(f"resuming from {self.folder}", self.config.hang_seconds):
                outcome = self._restore(step, saves=saves)
            if saves:
                self._identity.note_accepted()
                self._mirrors.start(self._run.take())
                self._warn_if_volatile()
                self._try_out()
                self._warm_up(outcome.step)
                self._period.begin(outcome.step, self._run.take().attempt)
                self._work.resumed(outcome.step, self._run.take().attempt)
        except BaseException:
            self._run.give_back()
            raise
        self._last_step = outcome.step or None
        self._resumed = True
        self._log_start(outcome)
        if self._world.rank == 0:
            note_start(outcome.step)
        if self._run.was_told_to_stop():
            self.stop_requested = True
            if self._world.rank == 0:
                logger.warning("this job was told to stop, and was started again by its launcher: it does not go on")
        if self._probe is not None:
            self._probe.started(outcome.step, self.total_steps)
        return outcome.step

    def _restore(self, step: int | None, *, saves: bool) -> Resumed:
        """Look, judge, fetch what only a mirror has, and load."""
        take = (lambda: self._run.take(self._mirrors.attempt)) if saves else None
        brought = self._mirrors.bring(take, step, self._guard_elsewhere)
        # Nothing is written, not even a lock, before it is known that this is a start.
        among = self._assemble(step, saves=saves)
        decision = look(self.folder, self._world, step, among=among)
        if not brought:
            refuse(self.folder, decision)
            if decision.candidates:
                self._guard(decision.candidates[0])
        else:
            self._guard_elsewhere(brought[0])
        trace_this_process(self._world.rank)
        if take is not None:
            take()
        policy = self._folders.policy(self._run.damage_policy(self.config, self._mirrors.repair))
        optional, guard = self._optional, self._guard
        return resume(self.folder, self._components, self._world, step, optional, policy, guard, brought, among)

    def _assemble(self, step: int | None, *, saves: bool) -> Collection[int] | None:
        """Bring what lies on other hosts. A job that never saves holds the folders for as long as that takes."""

        def judge(found: int, where: str, record: Mapping[str, Any]) -> None:
            self._identity.know(found, where, record)
            self._guard(found)

        policy = self._run.damage_policy(self.config)
        try:
            return self._folders.assemble(self.folder, step, self._run.take, judge, policy)
        finally:
            if not saves:
                self._run.give_back()

    def _guard_elsewhere(self, one: Elsewhere) -> None:
        self._identity.know(one.step, one.where, one.record)
        self._guard(one.step)

    def _guard(self, step: int) -> None:
        self._identity.guard(step)
        if hasattr(self._loader, "may_differ"):
            self._loader.may_differ = self._identity.accepted

    def _warn_if_volatile(self) -> None:
        if self._probe is None:
            warn_if_volatile(self.folder, self._world, has_mirror=bool(self.config.mirror) or self._folders.has_copies)

    def _try_out(self) -> None:
        """Meet now, and not after hours, state that cannot be stored; and learn what saves took before."""
        with agreed(self._world, f"preparing to save to {self.folder}", SaveError), no_collections():
            collect_state(self._components)
        seconds = self._run.seconds_of_a_save()
        if seconds is not None:
            self._saver.expect(seconds)

    def save_if_due(self, step: int) -> bool:
        """Save if the period asks for it at this step, or a stop was requested. Returns whether it saved.

        Also the place where all ranks agree on a stop, and hear how a save in the background ended: call it after
        every step.

        Raises:
            SaveError: this save, or the one in the background, failed; the same on every rank at the same step.
        """
        if self._probe is not None:
            return self._observe(self._probe, step)
        self._work.step_ended(step, is_busy=not self._saver.is_over)
        told = self._tell(is_due=self._period.is_due(step, self.total_steps))
        is_over = all(one.is_over for one in told)
        if is_over:
            self._settle()
        if self.stop_requested or any(one.stop for one in told):
            return self._stop(step)
        is_due = told[0].is_due
        if is_due and not is_over and self.config.when_busy == "skip" and step != self.total_steps:
            if self._period.left_out():
                self._saver.skip(self._request(step))
            return False
        if is_due:
            return self.save(step)
        if not self._is_warm:
            self._is_warm = True
            self._warm_up(step)
        return False

    def check_stop(self, step: int) -> bool:
        """Agree now whether a stop was requested, where no step ends soon: after skipping data, during an evaluation.

        Collective. It saves nothing; the next `save_if_due` does, and sees `stop_requested`.

        Args:
            step: completed steps.
        """
        told = self._tell()
        stop = self.stop_requested or any(one.stop for one in told)
        if stop and not self.stop_requested:
            self.stop_requested = True
            why = "" if step == self._last_step else "no step has ended since"
            self._run.note_stop(step, self._last_step, why, launchers_asked(told))
        return stop

    @property
    def saved_step(self) -> int | None:
        """The step of the newest checkpoint that this job has resumed from or committed; None when there is none."""
        return self._last_step

    @property
    def failed_saves(self) -> int:
        """How many saves have failed, and the job went on (`on_save_error: continue`)."""
        return self._failed.count

    def _tell(self, *, is_due: bool = False) -> list[Told]:
        left = seconds_left(self._notice, self.config.grace_seconds)
        is_noted, expected = self._notice.noted is not None, self._saver.expected_seconds
        launcher = this_launcher() if is_noted else None
        return self._world.gather(Told(is_noted, self._saver.is_over, left, expected, launcher, is_due))

    def _stop(self, step: int) -> bool:
        """A stop was requested: save this step, if there is time, and let the loop leave."""
        is_first, self.stop_requested = not self.stop_requested, True
        self._settle()
        told = self._tell()  # asked now: the save under way has taken some of the time
        why = why_no_time(told)
        if is_first and self._world.rank == 0:
            before = f"step {self._last_step} is saved" if self._last_step else "nothing is saved"
            text = (
                f"not enough time to save step {step} ({why}); {before}" if why else f"saving step {step} and leaving"
            )
            logger.warning("stop requested: %s", text)
        saved = not why and self.save(step)
        self.wait()
        self._run.note_stop(step, self._last_step, why, launchers_asked(told))
        return saved

    def _settle(self) -> None:
        """Hear how a save in the background has ended, and take a failure as it is configured."""
        step = self._saver.pending_step
        try:
            self.wait()
        except SaveError as error:
            # A step that comes makes up for it, the one of a stop as well.
            self._failed.take(error, step or 0, is_needed=step is not None and step == self.total_steps)

    def _warm_up(self, step: int) -> None:
        """Let the first save in the background cost what the others do. After the first step there are moments too."""
        if self.config.mode == "async" and self.config.period_steps != "disable":
            self._prepare()
            self._saver.prepare(step)

    def save(self, step: int) -> bool:
        """Save now, whatever the period. Returns whether it saved: not when `disable` is set or the step is saved.

        In async mode it returns when the state is copied; how the save ends is told by the next call, or by `wait`.

        Raises:
            SaveError: the same on every rank; nothing was committed, earlier checkpoints are untouched. With
                `on_save_error: continue` only when it is the last step's or too many have failed; else it is False.
        """
        if step < 0:
            raise ValueError(f"step must not be negative, not {step}")
        if self._probe is not None:
            return self._observe(self._probe, step)
        if self.config.period_steps == "disable":
            return False
        is_busy = not self._saver.is_over
        work = self._work.save_begins(step, is_busy=is_busy)
        try:
            self._settle()
            return step != self._last_step and self._attempt(step, work.waited() if is_busy else work)
        finally:
            self._work.save_ended()
            self._period.acted(step)

    def _attempt(self, step: int, work: Work) -> bool:
        try:
            return self._save(step, work)
        except SaveError as error:
            self._failed.take(error, step, is_needed=self.stop_requested or step == self.total_steps)
            return False

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

    def _save(self, step: int, work: Work | None = None) -> bool:
        self._prepare()
        self.before_save()
        if not self._resumed and not self._has_saved:
            self._mirrors.glance()
        request = self._request(step, work)
        if not self._has_saved:
            if not self._resumed:
                self._period.begin(step, request.attempt)
            self._run.forget_note()
            self._mirrors.start(request.claim)
        self._has_saved = True
        with watched(f"saving step {step}", self.config.hang_seconds):
            self._saver.start(request)
        self._note_saved()
        return True

    def _request(self, step: int, work: Work | None = None) -> SaveRequest:
        claim = self._run.take(self._mirrors.attempt)
        return SaveRequest(
            folder=self.folder,
            step=step,
            claim=claim,
            parent=self._last_step,
            resumed=self._resumed,
            record=self._identity.record(),
            components=tuple(component.name for component in self._components),
            num_to_keep=self.config.num_to_keep,
            rules=rules_of(self.config.keep),
            waiting=self._waiting if self._mirrors.are_wanted else nothing_waits,
            work=work,
            before_line=lambda: self._work.claimed(claim.attempt),
        )

    def _waiting(self, complete: Collection[SurveyedCheckpoint]) -> Collection[int]:
        return self._mirrors.waiting(complete, self.config.num_to_keep)

    def _note_saved(self) -> None:
        step = self._saver.last_step
        if step is not None and step != self._last_step:
            self._last_step = step
            self._failed.forget()
            if self._saver.last_row is not None:
                self._period.learn(self._saver.last_row)
            # What a stop has saved, and the end of the run, are what a machine that goes must not take with it.
            self._mirrors.committed(step, forced=self.stop_requested or step == self.total_steps)

    @property
    def mirror_failures(self) -> int:
        """How many times something could not be copied to a mirror, and the job went on; on the main process."""
        return self._mirrors.failures

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
        """Wait for a save under way and, within bounds, for its copies on mirrors; give signals and host buffers back.
        May be called twice.

        Raises:
            SaveError: the save failed.
        """
        try:
            self.wait()
        finally:
            try:
                self._close_mirrors()
                self._note_end(sys.exception())
            finally:
                self._saver.release()
                self._run.give_back()
                if self._handle_signals:
                    self._notice.restore()

    def _note_end(self, error: BaseException | None) -> None:
        """Unless `error` is what ends the job: then it has failed."""
        leaves = isinstance(error, StopRequested) or (self.stop_requested and isinstance(error, SystemExit))
        if error is None or leaves:
            self._work.ended(stopped=self.stop_requested)

    def _close_mirrors(self) -> None:
        if not self._mirrors.are_used:
            return
        self._mirrors.close(waiting_time(self._notice, self.config.grace_seconds, self._leaving))
        if self._has_saved and self._last_step is not None:
            apply_retention(self._request(self._last_step))  # what had to wait for its upload need not any more

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
        if not isinstance(error, StopRequested):
            self._leaving = _IMPATIENCE if isinstance(error, Exception) else 0.0
        try:
            self.close()
        except KeepstepError as second:
            logger.error("besides, the save under way failed: %s", second)

    def _log_start(self, outcome: Resumed) -> None:
        if self._world.rank != 0:
            return
        where = outcome.elsewhere or outcome.path
        if where is None:
            logger.info("starting from the first step")
            return
        logger.info("resumed from step %d (%s)", outcome.step, where)
        if outcome.world_size not in (None, self._world.size):
            logger.warning("it was saved by %s ranks; this job has %d", outcome.world_size, self._world.size)
