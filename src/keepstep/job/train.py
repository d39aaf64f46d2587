"""The training job: builds its parts, resumes, trains, and makes what stands at its end."""

import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from keepstep.checkpoint.checkpointer import Checkpointer
from keepstep.checkpoint.identity import RunIdentity
from keepstep.checkpoint.resume import look, refuse
from keepstep.checkpoint.stop import StopNotice
from keepstep.config.job import JobConfig
from keepstep.data.make import make_loader
from keepstep.dist.agree import agreed
from keepstep.dist.launch import launched_ranks
from keepstep.dist.mesh import MeshShape, Place
from keepstep.dist.world import World
from keepstep.errors import ConfigError, DamagedCheckpointError
from keepstep.export.loading import find_mapper
from keepstep.export.weights import export_weights, is_exported
from keepstep.job import configure
from keepstep.job.asked import NOTHING, Asked
from keepstep.job.attempt import Attempt, attempt_of, judge_newest
from keepstep.job.determinism import be_deterministic, seed_all
from keepstep.job.identify import identify
from keepstep.job.loop import TrainingLoop
from keepstep.job.lr_schedule import PhaseLR
from keepstep.job.metrics import MeanLoss
from keepstep.job.model_parts import divide_model
from keepstep.job.protocols import JobContext
from keepstep.job.providers import Providers, call, resolve
from keepstep.job.stop import leave_before
from keepstep.job.tracker import JsonlTracker
from keepstep.plan import layout
from keepstep.plan.batching import Division
from keepstep.plan.resume import ResumeDecision, Start
from keepstep.state.job_state import JobState
from keepstep.storage.ledger import LedgerFile, rewind

logger = logging.getLogger("keepstep")

ALREADY_COMPLETE = "Training is already complete, nothing to do"


class TrainingJob:
    """A training job from its configuration. `run` starts or resumes it, and is called by every rank.

    Args:
        config: a job with a trainer section.

    Raises:
        ConfigError: it has none, or a provider does not import.
    """

    def __init__(self, config: JobConfig) -> None:
        if config.trainer is None:
            raise ConfigError("this job has no trainer section; `keepstep infer` runs inference jobs")
        self.config = config
        self.trainer = config.trainer
        self.folder = configure.run_folder(config)
        self._providers: Providers = resolve(config.providers)

    def _make(self, name: str, *arguments: Any) -> Any:
        path = getattr(self.config.providers, name)
        return call(f"providers.{name}", path, getattr(self._providers, name), *arguments)

    def run(self, notice: StopNotice | None = None, asked: Asked = NOTHING) -> None:
        """Train up to total_steps, or from the newest checkpoint on, or do nothing if all is there.

        Args:
            notice: notes stop signals already; by default the job does that while it runs.
            asked: by the command line, beside the configuration.

        Raises:
            ConfigError: the configuration does not fit the world.
            GuardRefusedError: the run was begun with other data, base weights, ...; nothing was loaded or written.
            RunInUseError: another job writes to the run's folder.
            StopRequested: a signal came; the state of the last step is saved.
            KeepstepError: see `Checkpointer`.
        """
        # Every rank comes to this by itself, so it is refused before any of them waits for another.
        configure.check(self.config, launched_ranks())
        with attempt_of(self.folder, self.trainer.checkpointing, notice) as attempt:
            self._run(attempt, asked)

    def _run(self, attempt: Attempt, asked: Asked) -> None:
        world = attempt.world
        if asked.fresh:
            attempt.begin_anew()
        line = None if asked.from_step is None else attempt.go_back(asked.from_step)
        brought = attempt.bring(self.trainer.total_steps) if line is None else ()
        source = attempt.folder if line is None else line.parent
        decision = look(source, world, None if line is None else line.fork.step)
        if line is not None:
            refuse(source, decision)
        if not brought and self._finish_from(decision, source, world):
            return
        is_resumed = decision.start is Start.RESUME or bool(brought)
        self._check_targets(attempt, fresh=not is_resumed and decision.start is Start.FRESH)
        be_deterministic()
        shape, division = configure.divide_batches(self.trainer.batching, self.config.mesh, world.size)
        data_rank = shape.place_of(world.rank).data
        context = JobContext(self.config, attempt.device, world.rank, world.size, data_rank, shape.data_parallel)
        seed_all(self.trainer.determinism.base_seed)
        dataset = self._make("dataset", context)
        task = self._make("task", context)
        identity = identify(self.config, source, world, shape, dataset, task, asked, is_resumed=is_resumed, line=line)
        # Before anything is built, loaded or written.
        judge_newest(identity, decision, brought)
        if line is not None:
            attempt.begin(line)
            identity.move_to(attempt.folder)
        attempt.claim()
        self._train(attempt, context, shape, division, dataset, task, identity, fresh=not is_resumed)
        self._export(attempt.folder / layout.checkpoint_name(self.trainer.total_steps), world)

    def _finish_from(self, decision: ResumeDecision, folder: Path, world: World) -> bool:
        """Make what is missing after the last step. Returns whether the training is over."""
        if decision.start is not Start.RESUME or decision.candidates[0] < self.trainer.total_steps:
            return False
        last = decision.candidates[0]
        if last > self.trainer.total_steps and world.rank == 0:
            logger.warning("total_steps is %d, and step %d is done already", self.trainer.total_steps, last)
        try:
            exported = self._export(folder / layout.checkpoint_name(last), world)
        except DamagedCheckpointError as error:
            if world.rank == 0:
                logger.warning("%s; going on from the checkpoint before it", error)
            return False
        if not exported and world.rank == 0:
            logger.info(ALREADY_COMPLETE)
        return True

    def _check_targets(self, attempt: Attempt, *, fresh: bool) -> None:
        """Refuse now what would fail after days of training."""
        with agreed(attempt.world, "checking the configuration"):
            configure.check_targets(self.trainer, attempt.folder, fresh=fresh)

    def _export(self, checkpoint: Path, world: World) -> bool:
        """Export the last checkpoint if that is configured and not done. Returns whether it was made now."""
        target = configure.export_target(self.trainer, checkpoint.parent)
        if target is None:
            return False
        with agreed(world, f"looking for the export {target}"):
            done = world.rank == 0 and is_exported(checkpoint, target)
        if world.broadcast(done):
            return False
        factory = self.trainer.model_stage_factory
        partial = factory.checkpoint_only_trainable_parameters
        export_weights(
            checkpoint,
            target,
            factory.source_checkpoint if partial else None,
            side_files=configure.side_files(factory),
            source_mapper=find_mapper(factory.source_mapper, factory.source_checkpoint or "") if partial else None,
            partial=partial,
            mapper=configure.export_mapper(self.trainer),
            world=world,
        )
        if world.rank == 0:
            logger.info("exported step %s to %s", layout.step_of(checkpoint.name), target)
        return True

    def _train(
        self,
        attempt: Attempt,
        context: JobContext,
        shape: MeshShape,
        division: Division,
        dataset: Any,
        task: Any,
        identity: RunIdentity,
        *,
        fresh: bool,
    ) -> None:
        world, device = attempt.world, attempt.device
        trainer, factory = self.trainer, self.trainer.model_stage_factory
        seed = trainer.determinism.base_seed
        seed_all(seed)
        model: nn.Module = self._make("model", context).to(device)
        parts = divide_model(model, task, trainer, shape, division, world, device)
        del model
        with agreed(world, "loading source_checkpoint"):
            unread = configure.load_weights(factory, parts.stages, fresh=fresh)
        configure.warn_of_unread(world, unread)
        with agreed(world, "preparing the data"):
            loader = make_loader(dataset, division, parts.place.data, seed=seed, config=trainer.data)
        optimizer = self._optimizer(context, parts.whole)
        scheduler = self._scheduler(context, optimizer)
        metrics = MeanLoss(device)
        tracker = JsonlTracker(attempt.folder / "metrics.jsonl", writes=world.rank == 0)
        state = JobState(
            model=parts.stages,
            optimizer=optimizer,
            lr_scheduler=scheduler,
            data=loader,
            task=task if hasattr(task, "state_dict") else None,
            metrics=metrics,
            tracker=tracker,
            only_trainable_parameters=factory.checkpoint_only_trainable_parameters,
            with_buffers=factory.checkpoint_buffers,
            dp_rank=parts.place.data,
            dp_size=shape.data_parallel,
        )
        # Each rank draws its own random numbers (dropout); only the model's first weights are common to all.
        # Ranks side by side on the tensor axis compute the same, so they draw the same.
        seed_all(seed, parts.place.data + shape.data_parallel * parts.place.pipeline)
        checkpointer = Checkpointer(
            trainer.checkpointing,
            state,
            attempt.folder.name,
            trainer.total_steps,
            world=world,
            claim=attempt.claim(),
            notice=attempt.notice,
            identity=identity,
        )
        with checkpointer:
            start = checkpointer.resume()
            leave_before(checkpointer, start)
            ledger = self._ledger(attempt.folder, start, dataset, world, parts.place)
            loop = TrainingLoop(trainer, parts, optimizer, scheduler, metrics, tracker, ledger, world)
            loop.run(loader, start, checkpointer)
        tracker.close()
        if ledger is not None:
            ledger.close()

    def _ledger(self, folder: Path, start: int, dataset: Any, world: World, place: Place) -> LedgerFile | None:
        if not self.trainer.data.ledger:
            return None
        with agreed(world, "opening the ledger"):
            if world.rank == 0:
                rewind(folder, start)
        # Of the ranks that read the same samples one notes them.
        reads = place.tensor == place.pipeline == 0
        return LedgerFile(folder, place.data, len(dataset)) if reads else None

    def _optimizer(self, context: JobContext, model: nn.Module) -> torch.optim.Optimizer:
        if self._providers.optimizer is None:
            return configure.build_optimizer(self.trainer.optimizer, model)
        optimizer: torch.optim.Optimizer = self._make("optimizer", context, model)
        return optimizer

    def _scheduler(self, context: JobContext, optimizer: torch.optim.Optimizer) -> Any:
        if self._providers.lr_scheduler is None:
            return PhaseLR(optimizer, self.trainer.lr_scheduler, self.trainer.total_steps)
        return self._make("lr_scheduler", context, optimizer)
