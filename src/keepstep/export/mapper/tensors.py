"""What each step does to tensors. Parts of a tensor are views of it wherever they can be."""

from collections.abc import Iterable

import torch

from keepstep.config.mapper import (
    Cast,
    Chunk,
    Concatenate,
    Keep,
    PermuteHeads,
    Rename,
    RotaryLayout,
    Select,
    Split,
    Stack,
    Transpose,
    Unstack,
)
from keepstep.plan.mapping import Operation, TensorSpec


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Shape and dtype of a tensor, as plans write them."""
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def apply_operation(operation: Operation, tensors: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Do one operation of a plan.

    Args:
        operation: what to do.
        tensors: what it takes, in its order. One after another is asked for and copied where several become one, so
            that they need not be in memory together.

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
