"""Trains the stages of a pipeline, with the schedules of torch.distributed.pipelining."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from keepstep.config.training import PipelineConfig
from keepstep.data.device import to_device
from keepstep.data.loader import MicroBatch
from keepstep.dist.mesh import PIPELINE, MeshShape
from keepstep.errors import ConfigError
from keepstep.job.parallel import sync_gradients
from keepstep.state.names import named_tensors, names_of
from keepstep.state.rng import untouched_random_states


def own_stages(shape: MeshShape, config: PipelineConfig, place: int) -> list[int]:
    """The numbers of the stages of one rank of the pipeline: every so many, so that neighbours lie on neighbours."""
    return [place + round_ * shape.pipeline for round_ in range(config.stages_per_rank)]


def refuse_stages(whole: nn.Module, stages: Sequence[nn.Module]) -> None:
    """Refuse stages that do not make up the model under its own names, or would train a tied weight apart.

    Raises:
        ConfigError: two stages share a name, a name is not the model's, or a tie reaches over stages.
    """
    stage_of: dict[str, int] = {}
    for number, stage in enumerate(stages):
        for name, _ in named_tensors([stage]):
            if stage_of.setdefault(name, number) != number:
                raise ConfigError(
                    f"mesh.pipeline_parallel: stages {stage_of[name]} and {number} both hold the name {name}; each "
                    "parameter keeps the name that it has in the whole model"
                )
    names = {name for name, _ in named_tensors([whole])}
    odd = sorted(names ^ set(stage_of))
    if odd:
        raise ConfigError(
            f"mesh.pipeline_parallel: the stages do not hold what the model does under the same names: {odd[0]}"
        )
    for alias, name in names_of([whole]).aliases.items():
        if stage_of[alias] != stage_of[name]:
            raise ConfigError(
                f"mesh.pipeline_parallel: {alias} is tied to {name} in another stage; a pipeline would train them apart"
            )


class PipelinePasses:
    """This rank's stages of a pipeline.

    The first pass of a process tries out the stages with the first batch, to learn what they send to each other; it
    leaves no trace in gradients, buffers or random states, so that a resumed run is not told from another.

    Args:
        stages: this rank's modules, by stage number.
        count: stages in all.
        config: the schedule.
        task: has `inputs(batch)`, the tensors for the first stage; `target(batch)`; and `output_loss(output, target)`.
        passes: micro-batches of one step.
        shape, mesh: of the job.
        device: of this rank.
    """

    def __init__(
        self,
        stages: dict[int, nn.Module],
        count: int,
        config: PipelineConfig,
        task: Any,
        passes: int,
        shape: MeshShape,
        mesh: DeviceMesh,
        device: torch.device,
    ) -> None:
        lacking = [name for name in ("inputs", "target", "output_loss") if not callable(getattr(task, name, None))]
        if lacking:
            raise ConfigError(
                f"mesh.pipeline_parallel: the task has no {' and no '.join(lacking)} method; a pipeline asks the task "
                "for inputs(batch), target(batch) and output_loss(output, target)"
            )
        self._modules, self._task, self._device = list(stages.values()), task, device
        self._is_first, self._is_last = 0 in stages, count - 1 in stages
        self._shape, self._passes = shape, passes
        group = mesh.get_group(PIPELINE)
        made: list[Any] = [
            PipelineStage(module, number, count, device, group=group) for number, module in stages.items()
        ]
        kinds: dict[str, Any] = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
        if config.schedule == "interleaved_1f1b":
            self._schedule: Any = ScheduleInterleaved1F1B(made, passes, loss_fn=task.output_loss)
        else:
            self._schedule = kinds[config.schedule](made[0], passes, loss_fn=task.output_loss)
        self._tried = False

    def train(self) -> None:
        for module in self._modules:
            module.train()

    def run(self, batch: list[MicroBatch]) -> torch.Tensor:
        if not self._tried:
            self._try_out(batch)
        losses = self._step(batch)
        mean = torch.zeros((), dtype=torch.float64, device=self._device)
        if self._is_last:
            mean += torch.stack([loss.detach().double() for loss in losses]).mean()
        dist.all_reduce(mean)
        return mean / (self._shape.data_parallel * self._shape.tensor)

    def _step(self, batch: list[MicroBatch]) -> list[torch.Tensor]:
        data = [to_device(micro.data, self._device) for micro in batch]
        inputs = [self._task.inputs(one) for one in data]
        losses: list[torch.Tensor] = []
        for module in self._modules:
            sync_gradients(module, True)
        arguments = [torch.cat(column) for column in zip(*inputs, strict=True)] if self._is_first else []
        target = torch.cat([self._task.target(one) for one in data]) if self._is_last else None
        self._schedule.step(*arguments, target=target, losses=losses if self._is_last else None, return_outputs=False)
        return losses

    def _try_out(self, batch: list[MicroBatch]) -> None:
        buffers = [
            (module, name, buffer, buffer.clone())
            for stage in self._modules
            for module in stage.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        has_state = hasattr(self._task, "state_dict") and hasattr(self._task, "load_state_dict")
        state = copy.deepcopy(self._task.state_dict()) if has_state else None
        with untouched_random_states():
            self._step(batch)
        for stage in self._modules:
            stage.zero_grad()
        for module, name, buffer, before in buffers:
            buffer.copy_(before)
            module._buffers[name] = buffer  # a module may have put another in its place
        if has_state:
            self._task.load_state_dict(state)
        self._tried = True
