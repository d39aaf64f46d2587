"""Puts a model, or its stages, on the device mesh."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from keepstep.dist.mesh import REPLICATE, SHARD, TENSOR, MeshShape
from keepstep.errors import ConfigError


def parallelize(
    model: nn.Module, mesh: DeviceMesh | None, shape: MeshShape, plan: Mapping[str, ParallelStyle] | None = None
) -> nn.Module:
    """Divide a model, or a stage of it, over the tensor axis by its plan and over the data axes with FSDP2, in place.

    The members of every nn.ModuleList (the layers) are units of their own, so that only one is whole at a time. On a
    mesh that only replicates, gradients are averaged in the same fixed order at every step. DDP is not used: it lays
    out its buckets anew after the first backward pass, so that from 3 ranks on a resumed run may add in another order.

    Args:
        model: the module.
        mesh: of the whole job; None for one rank.
        shape: of the mesh.
        plan: for each part of the model how it is divided over the tensor axis; needed where that has ranks.

    Raises:
        ConfigError: the mesh asks for what the model cannot do.
    """
    if mesh is None:
        return model
    if shape.tensor > 1:
        if not plan:
            raise ConfigError(
                f"mesh.tensor_parallel = {shape.tensor}: a {type(model).__name__} has no tensor_parallel_plan() method "
                "that says how its parts are divided"
            )
        parallelize_module(model, mesh[TENSOR], dict(plan))
    if shape.data_parallel == 1:
        return model
    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    if scalars:
        raise ConfigError(f"mesh: {scalars[0]} has no dimension to shard or replicate over; give it the shape (1,)")
    data = mesh[REPLICATE, SHARD]
    # Inner units first: a unit must not hold parameters that are a unit of their own later.
    for module in reversed(list(model.modules())):
        if isinstance(module, nn.ModuleList):
            for layer in module:
                if _has_forward(layer) and not isinstance(layer, FSDPModule):
                    fully_shard(layer, mesh=data)
    fully_shard(model, mesh=data)
    return model


def tensor_plan_of(model: nn.Module) -> Mapping[str, ParallelStyle] | None:
    """How a model wants to be divided over the tensor axis, None if it does not say."""
    method = getattr(model, "tensor_parallel_plan", None)
    return method() if callable(method) else None


def _has_forward(module: nn.Module) -> bool:
    return not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict)


def sync_gradients(model: nn.Module, on: bool) -> None:
    """Switch the averaging of gradients on for the last micro-batch of a step, and off for those before."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(on)


def full_value(tensor: torch.Tensor) -> torch.Tensor:
    """The whole value of a DTensor; a plain tensor as it is. Collective for a DTensor."""
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def clip_gradients(stages: Sequence[nn.Module], limit: float, shape: MeshShape, mesh: DeviceMesh | None) -> None:
    """Scale all gradients so that their norm over the whole model is at most `limit`. Collective.

    torch's own function serves where all parameters lie alike. With a tensor or a pipeline axis some are plain and some
    are not, and a rank sees one stage: the norms are added up one by one, in the same order on every rank.
    """
    parameters = [p for stage in stages for p in stage.parameters()]
    if shape.tensor == shape.pipeline == 1:
        nn.utils.clip_grad_norm_(parameters, limit)
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    squares = [full_value(torch.linalg.vector_norm(g)).double().square() for g in gradients]
    total = torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)
    if shape.pipeline > 1 and mesh is not None:
        torch.distributed.all_reduce(total, group=mesh.get_group("pipeline_parallel"))
    factor = min(1.0, limit / (total.sqrt().item() + 1e-6))
    for gradient in gradients:
        gradient.mul_(factor)


def stage_modules(model: nn.Module, count: int) -> list[nn.Module]:
    """Cut a model into stages that run one after the other. Parameters keep their names.

    Args:
        model: has a `pipeline_stages(count)` method that returns them, or is an `nn.Sequential`.
        count: how many.

    Raises:
        ConfigError: it is neither, or gives another number of stages.
    """
    method = getattr(model, "pipeline_stages", None)
    if callable(method):
        stages = list(method(count))
    elif isinstance(model, nn.Sequential):
        stages = _cut(model, count)
    else:
        raise ConfigError(
            f"mesh.pipeline_parallel: a {type(model).__name__} has no pipeline_stages(count) method and is no "
            "nn.Sequential, so it cannot be cut into stages"
        )
    if len(stages) != count:
        raise ConfigError(f"mesh.pipeline_parallel: the model gave {len(stages)} stages, {count} are needed")
    return stages


def _cut(model: nn.Sequential, count: int) -> list[nn.Module]:
    children = list(model.named_children())
    if len(children) < count:
        raise ConfigError(f"mesh.pipeline_parallel: {len(children)} layers do not make {count} stages")
    stages: list[Any] = []
    for number in range(count):
        stage = nn.Sequential()
        for name, child in children[len(children) * number // count : len(children) * (number + 1) // count]:
            stage.add_module(name, child)  # under its own name: names are global
        stages.append(stage)
    return stages
