"""The loop of a training job: forward, backward, step, log, save."""

import logging
import time
from typing import Any

import torch

from keepstep.checkpoint.checkpointer import Checkpointer
from keepstep.checkpoint.probe import note
from keepstep.config.training import TrainerConfig
from keepstep.data.loader import MicroBatch
from keepstep.data.make import Loader
from keepstep.data.stream_loader import StreamLoader
from keepstep.dist.world import World
from keepstep.job.metrics import MeanLoss
from keepstep.job.model_parts import ModelParts
from keepstep.job.parallel import clip_gradients
from keepstep.job.progress import progress_bar
from keepstep.job.stop import leave_if_asked
from keepstep.job.tracker import JsonlTracker
from keepstep.storage.attempt_note import note_begin, note_step
from keepstep.storage.ledger import LedgerFile

logger = logging.getLogger("keepstep")


class TrainingLoop:
    """Forward, backward, step, log, save; until the last step or a stop."""

    def __init__(
        self,
        trainer: TrainerConfig,
        parts: ModelParts,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        metrics: MeanLoss,
        tracker: JsonlTracker,
        ledger: LedgerFile | None,
        world: World,
    ) -> None:
        self._trainer, self._parts = trainer, parts
        self._optimizer, self._scheduler = optimizer, scheduler
        self._metrics, self._tracker, self._ledger = metrics, tracker, ledger
        self._world = world

    def run(self, loader: Loader, start: int, checkpointer: Checkpointer) -> None:
        total = self._trainer.total_steps
        note_begin(start)
        if self._ledger is not None:
            checkpointer.before_save = self._ledger.sync
        batches = iter(loader)
        self._parts.passes.train()
        logged, at = start, time.monotonic()
        with progress_bar(self._trainer.run.name, start, total, shown=self._world.rank == 0) as advance:
            for step in range(start + 1, total + 1):
                rates = self._scheduler.get_last_lr()
                batch = next(batches)
                note("samples", [micro.indices for micro in batch])
                loss = self._step(batch)
                note("loss", loss)
                self._metrics.update(loss)
                if step == start + 1:
                    note_step(step)
                self._note(step, loader, batch)
                text = ""
                if step % self._trainer.logging.period_steps == 0 or step == total:
                    now = time.monotonic()
                    text = self._log(step, rates, (step - logged) / (now - at))
                    logged, at = step, now
                advance(text)
                checkpointer.save_if_due(step)
                leave_if_asked(checkpointer, step, total)

    def _step(self, batch: list[MicroBatch]) -> torch.Tensor:
        """One optimizer step over a global batch. Returns its mean loss over all ranks."""
        loss = self._parts.passes.run(batch)
        limit = self._trainer.max_gradient_norm
        if limit is not None:
            clip_gradients(self._parts.stages, limit, self._parts.shape, self._parts.mesh)
        self._optimizer.step()
        self._scheduler.step()
        self._optimizer.zero_grad()
        return loss

    def _note(self, step: int, loader: Loader, batch: list[MicroBatch]) -> None:
        if self._ledger is None or isinstance(loader, StreamLoader):
            return
        share = loader.division.global_batch_size // loader.division.ranks
        begin = loader.position - loader.division.global_batch_size + self._parts.place.data * share
        self._ledger.append(step, begin, [index for micro in batch for index in micro.indices])

    def _log(self, step: int, rates: Any, speed: float) -> str:
        loss = self._metrics.read()
        self._tracker.log({"step": step, "loss": loss, "lr": float(rates[0])})
        text = f"loss {loss:.4f}  lr {float(rates[0]):.3g}  {speed:.2f} steps/s"
        if self._world.rank == 0:
            logger.info("step %d/%d  %s", step, self._trainer.total_steps, text)
        return text
