"""One step's forward and backward passes over a global batch: plain, or through a pipeline."""

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from keepstep.data.device import to_device
from keepstep.data.loader import MicroBatch
from keepstep.dist.world import World
from keepstep.job.parallel import full_value, sync_gradients


class Passes(Protocol):
    """Fills the gradients of one step."""

    def train(self) -> None:
        """Put the model into training mode."""

    def run(self, batch: list[MicroBatch]) -> torch.Tensor:
        """Forward and backward over this rank's micro-batches. Returns the mean loss over all ranks, on all of them."""


class PlainPasses:
    """Each rank has the whole model, or its part of every layer."""

    def __init__(self, model: nn.Module, task: Any, world: World, device: torch.device) -> None:
        self._model, self._task, self._world, self._device = model, task, world, device

    def train(self) -> None:
        self._model.train()

    def run(self, batch: list[MicroBatch]) -> torch.Tensor:
        losses = []
        for number, micro in enumerate(batch):
            sync_gradients(self._model, number == len(batch) - 1)
            loss = self._task.loss(self._model, to_device(micro.data, self._device)) / len(batch)
            loss.backward()
            losses.append(loss.detach())
        mean = torch.stack([full_value(loss).double() for loss in losses]).sum()
        if self._world.size > 1:
            dist.all_reduce(mean)
            mean /= self._world.size
        return mean
