"""The checkpoints of a loop with Accelerate: `checkpoint-<step>` folders that plain Accelerate reads as well."""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import ValidationError

from keepstep.checkpoint.folder_resume import choose
from keepstep.checkpoint.folder_save import save_folder
from keepstep.checkpoint.identity import RunIdentity
from keepstep.checkpoint.mirrors.run_mirrors import RunMirrors
from keepstep.checkpoint.resume import Elsewhere, Resumed, look, refuse
from keepstep.checkpoint.run_folder import RunFolder
from keepstep.checkpoint.save import SaveRequest, apply_retention, nothing_waits
from keepstep.checkpoint.stop import StopNotice, waiting_time
from keepstep.checkpoint.volatile import warn_if_volatile
from keepstep.checkpoint.watchdog import watched
from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.dist.agree import agreed
from keepstep.errors import ConfigError, ResumeError, SaveError, StateError
from keepstep.integrations.accelerate.attached import attached
from keepstep.integrations.accelerate.bare import save_into, write_shared_files
from keepstep.integrations.accelerate.facts import facts_of
from keepstep.integrations.accelerate.files import missing_files, needed_files
from keepstep.integrations.accelerate.loader_states import write_loaders
from keepstep.integrations.accelerate.loading import Prepared
from keepstep.plan.layout import TRAINER
from keepstep.provenance.record import RunFacts
from keepstep.storage.folder_files import files_below
from keepstep.storage.survey import SurveyedCheckpoint

logger = logging.getLogger("keepstep")

# Seconds that a script which ends by an error waits for its uploads.
_IMPATIENCE = 20.0


class Checkpoints:
    """Saves and loads what an Accelerator has prepared and registered. All ranks call it at the same steps.

    Args:
        accelerator: after `prepare` and `register_for_checkpointing`.
        folder: the run's folder; each checkpoint is a folder `checkpoint-<step>` in it.
        num_to_keep: how many remain after a save; by default `total_limit` of the project's configuration, and where
            that is not set, all.
        on_damage: "fall_back": a damaged checkpoint goes to quarantine and the one before it is taken; "stop": fail.
        guards: what a difference between the checkpoint's run and this one does, by field (docs/guards.md).
        accept: differences that are accepted: "field=value", or "field" for what it is now.
        facts: more about the run, for run.json and the guards.
        mirror: where checkpoints are copied to; a folder named after `folder` is made there. `hf://user/repo` is the
            run's own. A load fetches them whole.

    Raises:
        ConfigError: one of these has a value that cannot be.
        ResumeError: the data could not be looked at.
    """

    def __init__(
        self,
        accelerator: Any,
        folder: str | Path,
        *,
        num_to_keep: int | None = None,
        on_damage: str = "fall_back",
        guards: Mapping[str, str] | None = None,
        accept: Sequence[str] = (),
        facts: RunFacts | None = None,
        mirror: Any = (),
    ) -> None:
        self.folder = Path(folder)
        self.num_to_keep = num_to_keep
        values = {"num_to_keep": num_to_keep, "on_damage": on_damage, "guards": dict(guards or {}), "mirror": mirror}
        try:
            self._config = CheckpointingConfig.model_validate(
                {"save_dir": str(self.folder), "period_steps": 1, **values}
            )
        except ValidationError as error:
            told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise ConfigError(told) from None
        self._accelerator = accelerator
        self._beside = attached(accelerator)
        self._world = self._beside.world
        self._run = RunFolder(self.folder, self._world, naming=TRAINER)
        with agreed(self._world, "looking at the data of this run", ResumeError):
            facts = facts_of(accelerator, self._beside, self.folder, facts)
        self._identity = RunIdentity(self.folder, self._world, facts, self._config, accept, naming=TRAINER)
        self._mirrors = RunMirrors(
            self._config.mirror,
            self.folder,
            self.folder.name,
            self._world,
            TRAINER,
            stops_on_damage=on_damage == "stop",
        )
        self._last_step: int | None = None
        self._has_looked = False
        self._seconds_to_leave: float | None = None
        self._size = 0

    def load(self, step: int | None = None, **more: Any) -> int:
        """Load the newest checkpoint of which every byte is as it was written, or the one of `step`.

        Args:
            step: the one to load and no other.
            more: for `Accelerator.load_state`.

        Returns:
            Completed steps; 0 when there surely is no checkpoint.

        Raises:
            CheckpointNotFoundError: `step` is not there.
            DamagedCheckpointError: checkpoints are there, and none is good.
            GuardRefusedError: the number of ranks, the data or another thing of the run is another now.
            StateMismatchError: a file is missing that what was prepared needs, or random states do not fit.
            ResumeError: a rank could not look, read or load; the same error on all ranks.
            RunInUseError: another job saves to this folder.
        """
        self._identity.record()
        self._mirrors.bring(lambda: self._run.take(self._mirrors.attempt), step, self._judge, whole_from=0)
        decision = look(self.folder, self._world, step, TRAINER)
        refuse(self.folder, decision)
        if decision.candidates:
            self._identity.guard(decision.candidates[0])
        try:
            claim = self._run.take(self._mirrors.attempt)
            warn_if_volatile(self.folder, self._world, has_mirror=bool(self._config.mirror))
            policy = self._run.damage_policy(self._config, self._mirrors.repair)
            with watched(f"resuming from {self.folder}", self._config.hang_seconds):
                found = choose(self.folder, TRAINER, self._world, step, policy, self._identity.guard)
                self._identity.note_accepted()
                if found.path is not None:
                    self._load(found.path, more)
            self._mirrors.start(claim)
        except BaseException:
            self._run.give_back()
            raise
        self._last_step = found.step or None
        self._has_looked = True
        self._log_start(found)
        return found.step

    def save(self, step: int, *, safe_serialization: bool = True, **more: Any) -> Path:
        """Save and commit. Earlier checkpoints are deleted after that, and only as many as `num_to_keep` says.

        Args:
            step: completed steps; the checkpoint is named after it.
            safe_serialization: weights as safetensors.
            more: for `Accelerator.save_state`.

        Returns:
            The checkpoint's folder.

        Raises:
            SaveError: the same on all ranks; nothing was committed, and earlier checkpoints are untouched.
            ConfigError: it is no step, or gradients are being accumulated, which no checkpoint holds.
        """
        path = self.folder / TRAINER.checkpoint_name(step)
        with agreed(self._world, f"saving step {step} to {path}", SaveError):
            self._refuse_what_cannot_be_saved(step)
        if step == self._last_step:
            return path
        if not self._has_looked and not self._size:
            self._mirrors.glance()
        request = self._request(step)
        self._mirrors.start(request.claim)

        def write(folder: Path) -> None:
            save_into(self._accelerator, folder, safe_serialization, more)
            write_loaders(self._accelerator, self._beside, folder, self._world.rank)

        with watched(f"saving step {step}", self._config.hang_seconds):
            saved = save_folder(request, write, self._world, self._complete, self._size)
        self._last_step, self._size = step, saved.size
        self._mirrors.committed(step)
        return path

    def close(self) -> None:
        """Wait, within bounds, for copies on mirrors, and let other jobs have the folder. May be called twice; an
        interpreter that ends gives the folder back too, and waits for no copy."""
        if self._mirrors.are_used:
            self._mirrors.close(waiting_time(StopNotice(), None, self._seconds_to_leave))
            if self._last_step is not None:
                apply_retention(self._request(self._last_step))
        self._run.give_back()

    def _judge(self, one: Elsewhere) -> None:
        self._identity.know(one.step, one.where, one.record)
        self._identity.guard(one.step)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._seconds_to_leave = _IMPATIENCE if isinstance(error, Exception) else 0.0
        self.close()

    def _load(self, path: Path, more: dict[str, Any]) -> None:
        phase = f"loading {path}"
        with agreed(self._world, phase, ResumeError):
            prepared = Prepared(self._accelerator, self._beside, path)
        with agreed(self._world, phase, ResumeError):
            prepared.load(more)

    def _request(self, step: int) -> SaveRequest:
        limit = self.num_to_keep or self._accelerator.project_configuration.total_limit

        def waiting(complete: Collection[SurveyedCheckpoint]) -> Collection[int]:
            return self._mirrors.waiting(complete, limit or None)

        return SaveRequest(
            folder=self.folder,
            step=step,
            claim=self._run.take(self._mirrors.attempt),
            parent=self._last_step,
            resumed=self._has_looked,
            record=self._identity.record(),
            components=("accelerator",),
            num_to_keep=limit or None,
            naming=TRAINER,
            waiting=waiting if self._mirrors.are_wanted else nothing_waits,
        )

    def _complete(self, folder: Path) -> None:
        if self._world.size > 1:
            write_shared_files(self._accelerator, folder)
        needed = needed_files(self._accelerator, self._world.size)
        if missing := missing_files(needed, [name for name, _ in files_below(folder)]):
            raise StateError(f"Accelerate has not written {', '.join(missing)}; a checkpoint without it would not load")

    def _refuse_what_cannot_be_saved(self, step: int) -> None:
        if type(step) is not int or step < 0:
            raise ConfigError(f"step must be a whole number, 0 or more, not {step!r}")
        if self.num_to_keep is not None and (type(self.num_to_keep) is not int or self.num_to_keep < 1):
            raise ConfigError(f"num_to_keep must be a whole number, 1 or more, or None, not {self.num_to_keep!r}")
        if not self._accelerator.sync_gradients:
            raise ConfigError(
                f"step {step} is within the accumulation of gradients, and no checkpoint holds gradients: save where "
                "accelerator.sync_gradients is true"
            )

    def _log_start(self, found: Resumed) -> None:
        if self._world.rank != 0:
            return
        if found.path is None:
            logger.info("starting from the first step")
        else:
            logger.info("resumed from step %d (%s)", found.step, found.path)
