"""Puts a model on the device mesh."""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from keepstep.errors import ConfigError


def parallelize(model: nn.Module, mesh: DeviceMesh | None) -> nn.Module:
    """Replicate and shard a model over a (replicate, shard) mesh with FSDP2, in place.

    The members of every nn.ModuleList (the layers) are units of their own, so that only one is whole at a time. On a
    mesh that only replicates, gradients are averaged in the same fixed order at every step. DDP is not used: it lays
    out its buckets anew after the first backward pass, so that from 3 ranks on a resumed run may add in another order.
    """
    if mesh is None:
        return model
    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    if scalars:
        raise ConfigError(f"mesh: {scalars[0]} has no dimension to shard or replicate over; give it the shape (1,)")
    # Inner units first: a unit must not hold parameters that are a unit of their own later.
    for module in reversed(list(model.modules())):
        if isinstance(module, nn.ModuleList):
            for layer in module:
                if _has_forward(layer) and not isinstance(layer, FSDPModule):
                    fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


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
