"""What each step does to tensors. Parts of a tensor are views of it wherever they can be."""

from collections.abc import Iterable, Mapping

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor import placement_types as placement

from keepstep.config.mapper import (
    Cast,
    Chunk,
    Concatenate,
    Gather,
    Keep,
    PermuteHeads,
    Rename,
    RotaryLayout,
    Select,
    Shard,
    Split,
    Stack,
    Transpose,
    Unstack,
)
from keepstep.plan.mapping import Operation, TensorSpec


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Shape, dtype and shards of a tensor, as plans write them. An axis of a mesh without names is called by number."""
    shards: list[tuple[str, int]] = []
    if isinstance(tensor, DTensor):
        axes = tensor.device_mesh.mesh_dim_names or tuple(map(str, range(tensor.device_mesh.ndim)))
        divided = zip(axes, tensor.placements, strict=True)
        shards = [(axis, dim) for axis, placement in divided if (dim := getattr(placement, "dim", None)) is not None]
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tuple(sorted(shards)))


def apply_operation(
    operation: Operation, tensors: Iterable[torch.Tensor], mesh: DeviceMesh | None = None
) -> tuple[torch.Tensor, ...]:
    """Do one operation of a plan.

    Args:
        operation: what to do.
        tensors: what it takes, in its order. One after another is asked for and copied where several become one, so
            that they need not be in memory together.
        mesh: where Shard divides tensors.

    Returns:
        What it gives, in its order; views of what it took where that is possible.
    """
    step = operation.step
    if isinstance(step, Concatenate | Stack):
        return (_joined(step, operation.gives[0].spec, tensors),)
    (tensor,) = tensors
    match step:
        case Rename() | Keep() | Select():
            return (tensor,)
        case Cast():
            return (tensor.to(getattr(torch, step.dtype)),)
        case Transpose():
            return (tensor.transpose(*step.dims),)
        case PermuteHeads():
            return (permute_heads(tensor, step.heads, step.to, step.dim),)
        case Shard():
            assert mesh is not None, "stream() has looked"
            return (_sharded(tensor, step.dims, mesh),)
        case Gather():
            return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor,)
        case Split():
            return torch.split(tensor, list(step.sizes), step.dim)
        case Chunk():
            return torch.chunk(tensor, len(step.give), step.dim)
        case Unstack():
            return torch.unbind(tensor, step.dim)
        case _:
            raise AssertionError(f"{operation.at} gives nothing and is in no plan")


def permute_heads(tensor: torch.Tensor, heads: int, to: RotaryLayout, dim: int = 0) -> torch.Tensor:
    """Reorder the rows of each head between the rotary layouts (see `keepstep.config.mapper.PermuteHeads`).

    Args:
        tensor: its length along `dim` is heads x head_dim.
        heads: number of heads.
        to: the layout of what is returned; `tensor` has the other one.
        dim: where the heads lie.
    """
    half = tensor.shape[dim] // heads // 2
    pairs = (heads, 2, half) if to == "interleaved" else (heads, half, 2)
    at = dim % tensor.dim()
    permuted: torch.Tensor = tensor.unflatten(at, pairs).transpose(at + 1, at + 2).flatten(at, at + 2)
    return permuted


def _sharded(tensor: torch.Tensor, dims: Mapping[str, int], mesh: DeviceMesh) -> DTensor:
    axes = mesh.mesh_dim_names or ()
    placements = [placement.Shard(dims[axis]) if axis in dims else placement.Replicate() for axis in axes]
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def _joined(step: Concatenate | Stack, spec: TensorSpec, tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    joined: torch.Tensor | None = None
    begin = 0
    for tensor in tensors:
        if joined is None:
            joined = tensor.new_empty(spec.shape)
        if isinstance(step, Stack):
            joined.select(step.dim, begin).copy_(tensor)
            begin += 1
        else:
            joined.narrow(step.dim, begin, tensor.shape[step.dim]).copy_(tensor)
            begin += tensor.shape[step.dim]
        del tensor  # or it would stay until the next one is there
    assert joined is not None, "a step joins at least one tensor"
    return joined
