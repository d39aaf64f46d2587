"""The inference job: its loop, and nothing else."""

import contextlib
import logging
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from keepstep.checkpoint.checkpointer import Checkpointer
from keepstep.checkpoint.identity import RunIdentity
from keepstep.checkpoint.resume import look
from keepstep.checkpoint.stop import StopNotice
from keepstep.config.job import JobConfig
from keepstep.data.device import to_device
from keepstep.data.loader import GlobalBatchLoader, MicroBatch
from keepstep.dcp.reader import read
from keepstep.dist.agree import agreed
from keepstep.dist.launch import launched_ranks
from keepstep.dist.mesh import MeshShape, make_mesh
from keepstep.dist.world import World
from keepstep.errors import ConfigError, DamagedCheckpointError
from keepstep.export.weights import identity_of
from keepstep.job import configure
from keepstep.job.asked import NOTHING, Asked
from keepstep.job.attempt import Attempt, attempt_of, judge_newest
from keepstep.job.determinism import be_deterministic, seed_all
from keepstep.job.identify import identify
from keepstep.job.output_file import is_output_of, write_output
from keepstep.job.parallel import parallelize
from keepstep.job.predicting import Placed, Predictor
from keepstep.job.progress import SampleProgress, progress_bar
from keepstep.job.protocols import JobContext
from keepstep.job.providers import Providers, call, resolve
from keepstep.job.sink import OutputSink
from keepstep.job.stop import leave_before, leave_if_asked
from keepstep.plan import layout
from keepstep.plan.resume import ResumeDecision, Start
from keepstep.plan.shards import share_of
from keepstep.state.job_state import JobState
from keepstep.storage.outputs.folder import is_finished

logger = logging.getLogger("keepstep")

_POSITION = "data.dp_0.samples"

ALREADY_COMPLETE = "Inference is already complete, nothing to do"


class InferenceJob:
    """An inference job from its configuration: one pass over the data set. `run` is called by every rank.

    Results are collected in the task's state, or go to parts in a folder (`outputs`). Both are committed together with
    the position: whatever dies, each sample is in the output once.

    Args:
        config: a job with an inference section.

    Raises:
        ConfigError: it has none, or a provider does not import.
    """

    def __init__(self, config: JobConfig) -> None:
        if config.inference is None:
            raise ConfigError("this job has no inference section; `keepstep train` runs training jobs")
        self.config = config
        self.inference = config.inference
        self.folder = configure.run_folder(config)
        self._shard = configure.shard_name(config)
        self._providers: Providers = resolve(config.providers)

    def _make(self, name: str, *arguments: Any) -> Any:
        path = getattr(self.config.providers, name)
        return call(f"providers.{name}", path, getattr(self._providers, name), *arguments)

    def run(self, notice: StopNotice | None = None, asked: Asked = NOTHING) -> None:
        """Process what is not processed yet, write the output, or do nothing if all is there.

        Args:
            notice: notes stop signals already; by default the job does that while it runs.
            asked: by the command line, beside the configuration.

        Raises:
            ConfigError: the configuration does not fit the world.
            GuardRefusedError: the run was begun with other data, base weights, ...; nothing was loaded or written.
            RunInUseError: another job writes to the folder.
            StopRequested: a signal came; the state of the last step is saved.
            KeepstepError: see `Checkpointer`.
        """
        # Every rank comes to this by itself, so it is refused before any of them waits for another.
        configure.check(self.config, launched_ranks())
        with attempt_of(self.folder, self.inference.checkpointing, notice, has_name=bool(self._shard)) as attempt:
            self._run(attempt, asked)

    def _run(self, attempt: Attempt, asked: Asked) -> None:
        world, device = attempt.world, attempt.device
        seed_all(self.inference.determinism.base_seed)
        shape, division = configure.divide_batches(self.inference.batching, self.config.mesh, world.size)
        context = JobContext(self.config, device, world.rank, world.size, world.rank, world.size)
        dataset = self._make("dataset", context)
        configure.check_inference(self.config, shape, dataset)
        with agreed(world, "looking for other shards"):
            if world.rank == 0:
                configure.check_division(self.inference)
        span = configure.span_of(self.config, len(dataset))
        loader = GlobalBatchLoader(
            dataset,
            division,
            world.rank,
            seed=0,
            shuffle=False,
            epochs=1,
            num_workers=self.inference.num_workers,
            span=span,
            tolerant=self.inference.outputs is not None and self.inference.outputs.on_error == "record",
            length_budget=by_length.budget if (by_length := self.inference.batching.by_length) else None,
        )
        if asked.fresh:
            attempt.begin_anew()
        brought = attempt.bring()
        decision = look(self.folder, world)
        task = self._make("task", context)
        self._check_task(task)
        is_resumed = decision.start is Start.RESUME or bool(brought)
        identity = identify(self.config, self.folder, world, shape, dataset, task, asked, is_resumed=is_resumed)
        judge_newest(identity, decision, brought)
        if (
            not brought
            and self._is_done(decision, loader, world)
            and self._has_output(decision.candidates[0] if decision.candidates else 0, world)
        ):
            if world.rank == 0:
                logger.info(ALREADY_COMPLETE)
            return
        attempt.claim()
        self._infer(attempt, context, loader, shape, task, identity, asked, fresh=not is_resumed)

    def _check_task(self, task: Any) -> None:
        if self.inference.output_to is not None and self.inference.outputs is not None and not hasattr(task, "result"):
            raise ConfigError(
                f"providers.task = {self.config.providers.task!r}: output_to needs a task with collect and result; "
                "leave it out where outputs are all that is wanted"
            )

    def _is_done(self, decision: ResumeDecision, loader: GlobalBatchLoader, world: World) -> bool:
        """Whether the newest checkpoint has all samples behind it; the batch size may have changed on the way."""
        # Without inputs there is no step, and no checkpoint.
        done = not loader.steps_left and decision.start is Start.FRESH and self.inference.outputs is not None
        with agreed(world, f"looking into {self.folder}"):
            if world.rank == 0 and decision.start is Start.RESUME:
                newest = self.folder / layout.checkpoint_name(decision.candidates[0])
                with contextlib.suppress(DamagedCheckpointError):  # the resume goes on from the one before it
                    done = read(newest, {}, [_POSITION])[_POSITION] >= loader.end
        return world.broadcast(done)

    def _infer(
        self,
        attempt: Attempt,
        context: JobContext,
        loader: GlobalBatchLoader,
        shape: MeshShape,
        task: Any,
        identity: RunIdentity,
        asked: Asked,
        *,
        fresh: bool,
    ) -> None:
        world = attempt.world
        be_deterministic()
        factory = self.inference.model_stage_factory
        model: nn.Module = self._make("model", context).to(context.device)
        # By default each rank has the whole model: ranks of a sharded one meet in every pass, and a task may make
        # more passes for one sample than for another.
        if self.config.mesh.data_parallel_shard not in (1, "auto"):
            model = parallelize(model, make_mesh(shape, context.device), shape)
        model.eval()
        with agreed(world, "loading source_checkpoint"):
            unread = configure.load_weights(factory, [model], fresh=fresh)
        configure.warn_of_unread(world, unread)
        seed_all(self.inference.determinism.base_seed, world.rank)
        sink = self._sink(attempt, len(loader.dataset), identity)
        state = JobState(
            model=model,
            data=loader,
            # One that collects must keep what it collects.
            task=task if sink is None or hasattr(task, "state_dict") or hasattr(task, "collect") else None,
            outputs=sink,
            only_trainable_parameters=factory.checkpoint_only_trainable_parameters,
        )
        steps = loader.steps_left or None
        checkpointer = Checkpointer(
            self.inference.checkpointing,
            state,
            self._shard or None,
            steps,
            world=world,
            claim=attempt.claim(),
            notice=attempt.notice,
            identity=identity,
        )
        passes = self._passes(context, model, task, loader, sink)
        with checkpointer:
            start = checkpointer.resume()
            total = start + (loader.steps_left or 0)
            if sink is not None:
                sink.begin(is_over=start == total, replace=asked.fresh)
                checkpointer.before_save = sink.commit
            leave_before(checkpointer, start)
            checkpointer.total_steps = total or None
            self._loop(passes, task, loader, start, total, checkpointer, world, sink)
        self._write_output(task, total, world)
        if sink is not None:
            sink.finish(self._identity(total), loader.done)

    def _sink(self, attempt: Attempt, inputs: int, identity: RunIdentity) -> OutputSink | None:
        config, claim = self.inference.outputs, attempt.claim()
        if config is None or claim is None:
            return None
        shard = configure.shard_of(self.inference)
        share = share_of(shard, inputs, identity.record()) if shard else None
        folder = configure.outputs_folder(self.inference, config)
        return OutputSink(config, folder, self.folder, attempt.world, claim, share)

    def _passes(
        self, context: JobContext, model: nn.Module, task: Any, loader: GlobalBatchLoader, sink: OutputSink | None
    ) -> Callable[[MicroBatch], list[Placed]]:
        """What makes one pass, and returns the results of the samples that count, with their places."""
        # FSDP2 keeps tensors between passes, and those of inference mode cannot be saved.
        without_gradients = torch.no_grad if isinstance(model, FSDPModule) else torch.inference_mode
        config = self.inference.outputs
        if sink is not None and config is not None:
            return Predictor(task, model, loader, context.device, without_gradients, config, sink).take

        def make(micro: MicroBatch) -> list[Placed]:
            with without_gradients():
                results = list(task.predict(model, to_device(micro.data, context.device)))
            if len(results) < micro.samples:  # those that lack would be lost without a word
                raise ValueError(f"predict gave {len(results)} results for {micro.samples} samples")
            return list(zip(micro.places[: micro.samples], results[: micro.samples], strict=True))

        return make

    def _loop(
        self,
        passes: Callable[[MicroBatch], list[Placed]],
        task: Any,
        loader: GlobalBatchLoader,
        start: int,
        total: int,
        checkpointer: Checkpointer,
        world: World,
        sink: OutputSink | None,
    ) -> None:
        batches = iter(loader)
        collects = sink is None or hasattr(task, "collect")
        progress = SampleProgress(loader.position, loader.end or 0)
        with progress_bar("inference", start, total, shown=world.rank == 0, is_timed=False) as advance:
            for step in range(start + 1, total + 1):
                if sink is not None:
                    sink.step = step
                own = [placed for micro in next(batches) for placed in passes(micro)]
                if collects:
                    in_order = [result for _, result in sorted(own, key=itemgetter(0))]
                    task.collect([result for part in world.gather(in_order) for result in part])
                pace = progress.at(loader.position)
                if world.rank == 0 and (step % self.inference.logging.period_steps == 0 or step == total):
                    logger.info("step %d/%d  %d samples done  %s", step, total, loader.done, pace)
                advance(pace)
                checkpointer.save_if_due(step)
                if sink is not None:
                    sink.publish(checkpointer.saved_step)
                leave_if_asked(checkpointer, step, total)

    def _write_output(self, task: Any, total: int, world: World) -> None:
        target = self.inference.output_to
        if target is None:
            return
        with agreed(world, f"writing {target}"):
            if world.rank == 0:
                write_output(Path(target), task.result(), self._identity(total))
                logger.info("wrote %s", target)

    def _has_output(self, step: int, world: World) -> bool:
        with agreed(world, "looking for the output"):
            found = world.rank == 0 and self._find_output(self._identity(step))
        return world.broadcast(found)

    def _find_output(self, identity: dict[str, str | int]) -> bool:
        target, outputs = self.inference.output_to, self.inference.outputs
        if target is not None and not is_output_of(Path(target), identity):
            return False
        return outputs is None or is_finished(configure.outputs_folder(self.inference, outputs), identity)

    def _identity(self, step: int) -> dict[str, str | int]:
        checkpoint = self.folder / layout.checkpoint_name(step)
        return identity_of(checkpoint) if checkpoint.is_dir() else {"step": step}
