"""This rank's part of the model, as the mesh divides it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from keepstep.config.training import TrainerConfig
from keepstep.dist.mesh import MeshShape, Place, make_mesh
from keepstep.dist.world import World
from keepstep.job.parallel import parallelize, stage_modules, tensor_plan_of
from keepstep.job.passes import Passes, PlainPasses
from keepstep.job.pipeline import PipelinePasses, own_stages, refuse_stages
from keepstep.plan.batching import Division
from keepstep.state.names import named_tensors


class StageSet(nn.Module):
    """Several stages as one module whose parameters have their global names: for optimizers that look at names."""

    def __init__(self, stages: list[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        seen: set[int] = set()
        for name, value in named_tensors(list(self.stages)):
            if isinstance(value, nn.Parameter) and not (remove_duplicate and id(value) in seen):
                seen.add(id(value))
                yield (f"{prefix}.{name}" if prefix else name), value


@dataclass(frozen=True)
class ModelParts:
    """A rank's stages, how they are trained, and where they stand.

    `whole` is the one stage of a job without a pipeline, and all of this rank's together with one.
    """

    stages: list[nn.Module]
    whole: nn.Module
    passes: Passes
    shape: MeshShape
    place: Place
    mesh: DeviceMesh | None


def divide_model(
    model: nn.Module,
    task: Any,
    trainer: TrainerConfig,
    shape: MeshShape,
    division: Division,
    world: World,
    device: torch.device,
) -> ModelParts:
    """Put a model on the mesh. Collective.

    Raises:
        ConfigError: the mesh or the pipeline asks for what the model or the task cannot do.
    """
    mesh, place, plan = make_mesh(shape, device), shape.place_of(world.rank), tensor_plan_of(model)
    if shape.pipeline == 1 or mesh is None:
        one = parallelize(model, mesh, shape, plan)
        return ModelParts([one], one, PlainPasses(one, task, world, device), shape, place, mesh)
    count = shape.pipeline * trainer.pipeline.stages_per_rank
    all_stages = stage_modules(model, count)
    refuse_stages(model, all_stages)
    own = {number: all_stages[number] for number in own_stages(shape, trainer.pipeline, place.pipeline)}
    own = {number: parallelize(stage, mesh, shape, plan) for number, stage in own.items()}
    passes = PipelinePasses(own, count, trainer.pipeline, task, division.accumulation, shape, mesh, device)
    stages = list(own.values())
    return ModelParts(stages, StageSet(stages), passes, shape, place, mesh)
