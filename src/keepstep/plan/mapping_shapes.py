"""What a step makes of shapes and dtypes."""

from collections.abc import Mapping, Sequence

from keepstep.config.mapper import (
    Cast,
    Chunk,
    Concatenate,
    Drop,
    Gather,
    Keep,
    Leaf,
    PermuteHeads,
    Rename,
    Select,
    Shard,
    Split,
    Stack,
    Transpose,
    Unstack,
)
from keepstep.plan.mapping import TensorSpec

_Whole = Transpose | PermuteHeads | Concatenate | Split | Chunk | Stack | Unstack | Shard


class UnfitError(ValueError):
    """Shapes or dtypes that a step cannot work on; the message says why, without the names."""


def specs_after(step: Leaf, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Shapes and dtypes of what a step gives when it takes tensors like these.

    Raises:
        UnfitError: it cannot take them.
    """
    first = specs[0]
    match step:
        case Drop():
            return ()
        case Rename() | Keep() | Select():
            return (first,)
        case Cast():
            if step.source is not None and first.dtype != step.source:
                raise UnfitError(f"it is {first.dtype}, declared is {step.source}")
            return (TensorSpec(first.shape, step.dtype, first.shards),)
        case Gather():
            if step.dims is not None and _shards(step.dims, first) != first.shards:
                raise UnfitError(f"it is {first}, declared is {step.dims}")
            return (TensorSpec(first.shape, first.dtype),)
    for spec in specs:
        if spec.shards:
            raise UnfitError(f"it is {spec}, and {step.kind} takes whole tensors; gather it before")
    return _specs_of_whole(step, specs)


def _specs_of_whole(step: _Whole, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    first = specs[0]
    match step:
        case Shard():
            return (TensorSpec(first.shape, first.dtype, _shards(step.dims, first)),)
        case Transpose():
            a, b = (_dim(dim, first) for dim in step.dims)
            shape = list(first.shape)
            shape[a], shape[b] = shape[b], shape[a]
            return (TensorSpec(tuple(shape), first.dtype),)
        case PermuteHeads():
            length = first.shape[_dim(step.dim, first)]
            if length % (2 * step.heads):
                raise UnfitError(f"{length} rows are not {step.heads} heads of an even number of rows")
            return (first,)
        case Concatenate():
            return (_concatenated(step, specs),)
        case Split():
            return _divided(first, step.dim, step.sizes)
        case Chunk():
            length, parts = first.shape[_dim(step.dim, first)], len(step.give)
            if length % parts:
                raise UnfitError(f"a length of {length} does not divide into {parts} equal parts")
            return _divided(first, step.dim, (length // parts,) * parts)
        case Stack():
            if any(spec != first for spec in specs):
                raise UnfitError(f"only equal shapes and dtypes stack, not {_listed(specs)}")
            dim = _dim(step.dim, first, added=1)
            return (TensorSpec((*first.shape[:dim], len(specs), *first.shape[dim:]), first.dtype),)
        case Unstack():
            dim = _dim(step.dim, first)
            spec = TensorSpec((*first.shape[:dim], *first.shape[dim + 1 :]), first.dtype)
            return (spec,) * unstacked(step, first)


def unstacked(step: Unstack, spec: TensorSpec) -> int:
    """How many tensors an Unstack makes of one. Raises UnfitError."""
    count = spec.shape[_dim(step.dim, spec)]
    if step.count is not None and count != step.count:
        raise UnfitError(f"{count} are stacked in it, declared are {step.count}")
    return count


def _dim(dim: int, spec: TensorSpec, added: int = 0) -> int:
    dims = len(spec.shape) + added
    if not -dims <= dim < dims:
        raise UnfitError(f"dimension {dim} of {dims} does not exist")
    return dim % dims


def _shards(dims: Mapping[str, int], spec: TensorSpec) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((axis, _dim(dim, spec)) for axis, dim in dims.items()))


def _concatenated(step: Concatenate, specs: Sequence[TensorSpec]) -> TensorSpec:
    first = specs[0]
    dim = _dim(step.dim, first)
    rests = {(spec.dtype, spec.shape[:dim], spec.shape[dim + 1 :], len(spec.shape)) for spec in specs}
    if len(rests) > 1:
        raise UnfitError(f"only tensors that differ in dimension {step.dim} alone can be joined, not {_listed(specs)}")
    lengths = tuple(spec.shape[dim] for spec in specs)
    expected = step.sizes or (lengths[0],) * len(specs)
    if lengths != expected:
        declared = f"declared is {list(expected)}" if step.sizes else "without sizes all must be equal"
        raise UnfitError(f"lengths are {list(lengths)}, {declared}")
    return TensorSpec((*first.shape[:dim], sum(lengths), *first.shape[dim + 1 :]), first.dtype)


def _divided(spec: TensorSpec, dim: int, sizes: Sequence[int]) -> tuple[TensorSpec, ...]:
    at = _dim(dim, spec)
    if sum(sizes) != spec.shape[at]:
        raise UnfitError(f"sizes {list(sizes)} add up to {sum(sizes)}, its length is {spec.shape[at]}")
    return tuple(TensorSpec((*spec.shape[:at], size, *spec.shape[at + 1 :]), spec.dtype) for size in sizes)


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(dict.fromkeys(map(str, specs)))
