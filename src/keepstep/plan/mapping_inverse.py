"""The way back: a mapper for export from the one for import."""

from keepstep.config.mapper import (
    Cast,
    Chunk,
    Composite,
    Concatenate,
    Drop,
    Gather,
    Graph,
    Keep,
    Leaf,
    Parallel,
    PermuteHeads,
    Rename,
    Scope,
    Select,
    Sequence,
    Shard,
    Split,
    Stack,
    Transpose,
    Unstack,
)
from keepstep.errors import ConfigError

# Formats whose values all exist in the other one, each with itself left out.
_HOLDS = {
    "float64": {"float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int32", "int16", "int8", "uint8"},
    "float32": {"float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int16", "int8", "uint8"},
    "float16": {"float8_e4m3fn", "float8_e5m2", "int8", "uint8"},
    "bfloat16": {"float8_e4m3fn", "float8_e5m2", "int8", "uint8"},
    "int64": {"int32", "int16", "int8", "uint8", "bool"},
    "int32": {"int16", "int8", "uint8", "bool"},
    "int16": {"int8", "uint8", "bool"},
}


def invert(steps: tuple[Leaf | Composite, ...]) -> tuple[Leaf | Composite, ...]:
    """The steps that undo these, bit for bit.

    Raises:
        ConfigError: a step cannot be undone: it drops tensors, or it casts to a dtype that holds less, or does not say
            from which.
    """
    return tuple(_inverse(step) for step in reversed(steps))


def _inverse(step: Leaf | Composite) -> Leaf | Composite:
    match step:
        case Rename():
            names = {new: old for old, new in step.names.items()}
            if len(names) < len(step.names):
                raise ConfigError(f"{_text(step)} gives one name twice")
            return Rename(names=names)
        case Keep() | Transpose():
            return step
        case Cast():
            if step.source is None:
                raise ConfigError(f"{_text(step)} cannot be inverted: say what dtype the source has")
            if step.source != step.dtype and step.source not in _HOLDS.get(step.dtype, ()):
                raise ConfigError(f"{_text(step)} cannot be inverted: {step.dtype} does not hold all of {step.source}")
            return Cast(names=step.names, dtype=step.source, source=step.dtype)
        case PermuteHeads():
            other = "half_split" if step.to == "interleaved" else "interleaved"
            return PermuteHeads.model_validate({**step.model_dump(), "to": other})
        case Concatenate():
            if step.sizes is None:
                return Chunk(take=step.give, give=step.take, dim=step.dim)
            return Split(take=step.give, give=step.take, dim=step.dim, sizes=step.sizes)
        case Split():
            return Concatenate(take=step.give, give=step.take, dim=step.dim, sizes=step.sizes)
        case Chunk():
            return Concatenate(take=step.give, give=step.take, dim=step.dim)
        case Stack():
            return Unstack(take=step.give, give=step.take, dim=step.dim, count=step.count)
        case Unstack():
            return Stack(take=step.give, give=step.take, dim=step.dim, count=step.count)
        case Shard():
            return Gather(names=step.names, dims=step.dims)
        case Gather():
            if step.dims is None:
                raise ConfigError(f"{_text(step)} cannot be inverted: say how the source is divided")
            return Shard(names=step.names, dims=step.dims)
        case Scope():
            return Scope(prefix=step.target, to=step.prefix, steps=invert(step.steps))
        case Sequence():
            return Sequence(steps=invert(step.steps))
        case Parallel():
            return Parallel(steps=invert(step.steps))
        case Graph():
            return Graph(steps=invert(step.steps))
        case _:
            raise ConfigError(f"{_text(step)} cannot be inverted: what it leaves out is gone")


def _text(step: Rename | Cast | Drop | Select | Gather) -> str:
    names = step.names
    return f"{step.kind} of {', '.join(names)}"
