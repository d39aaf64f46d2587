"""The steps of a model state mapper that take and give tensors, as a user declares them."""

from collections.abc import Sized
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from keepstep.config.base import Section
from keepstep.config.pattern import name_pattern

Dtype = Literal[
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
    "int64", "int32", "int16", "int8", "uint8", "bool",
]  # fmt: skip
RotaryLayout = Literal["half_split", "interleaved"]
_Some = TypeVar("_Some", bound=Sized)


def _is_pattern(text: str) -> str:
    if not text:
        raise ValueError("a name must not be empty")
    name_pattern(text)
    return text


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _is_prefix(text: str) -> str:
    name_pattern(text)
    return text


def some(values: _Some) -> _Some:
    """Refuse what is empty. For validators. Raises ValueError."""
    if not values:
        raise ValueError("must hold at least one")
    return values


def _several(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) < 2:
        raise ValueError("must hold at least two names")
    if len(set(names)) < len(names):
        raise ValueError("must not hold a name twice")
    return names


# Checked after the items, so that what is wrong with one of them is said once.
Name = Annotated[str, AfterValidator(_is_pattern)]
Names = Annotated[tuple[Name, ...], BeforeValidator(_one_or_more), AfterValidator(some)]
Parts = Annotated[tuple[Name, ...], AfterValidator(_several)]
Prefix = Annotated[str, AfterValidator(_is_prefix)]
Dim = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1)]
Sizes = tuple[Count, ...]


def same_placeholders(*texts: str) -> None:
    """Refuse patterns of which one could not be filled from another. Raises ValueError."""
    first, *others = ({*name_pattern(text).placeholders} for text in texts)
    for text, placeholders in zip(texts[1:], others, strict=True):
        if placeholders != first:
            raise ValueError(f"{texts[0]} and {text} must have the same placeholders")


def _one_size_each(parts: tuple[str, ...], sizes: tuple[int, ...] | None) -> None:
    if sizes is not None and len(sizes) != len(parts):
        raise ValueError(f"{len(parts)} names need as many sizes, not {len(sizes)}")


def _index_of(many: str, one: str) -> str:
    own = [name for name in name_pattern(many).placeholders if name not in name_pattern(one).placeholders]
    foreign = set(name_pattern(one).placeholders) - set(name_pattern(many).placeholders)
    if len(own) != 1 or foreign:
        raise ValueError(f"{many} must have the placeholders of {one} and one more, which counts the tensors")
    return own[0]


class Rename(Section):
    """Gives tensors other names: old to new, both exact or both patterns with the same placeholders."""

    kind: Literal["rename"] = "rename"
    names: Annotated[dict[Name, Name], AfterValidator(some)]

    @model_validator(mode="after")
    def _fits(self) -> "Rename":
        for old, new in self.names.items():
            same_placeholders(old, new)
        return self


class Keep(Section):
    """Hands tensors on as they are: a name that no step takes is an error, and this takes it."""

    kind: Literal["keep"] = "keep"
    names: Names


class Drop(Section):
    """Leaves tensors out; they are never read. Cannot be inverted."""

    kind: Literal["drop"] = "drop"
    names: Names


class Select(Section):
    """Hands these tensors on and drops every other one (in parallel: leaves them to the others). Cannot be inverted."""

    kind: Literal["select"] = "select"
    names: Names


class Cast(Section):
    """Converts tensors to another dtype.

    Attributes:
        dtype: what they become.
        source: what they are; checked where given. A cast can be inverted if it is given and `dtype` holds each of its
            values.
    """

    kind: Literal["cast"] = "cast"
    names: Names
    dtype: Dtype
    source: Dtype | None = None


class Transpose(Section):
    """Swaps two dimensions."""

    kind: Literal["transpose"] = "transpose"
    names: Names
    dims: tuple[Dim, Dim] = (0, 1)


class PermuteHeads(Section):
    """Reorders the rows of each attention head between the two rotary layouts.

    With `half_split` (Hugging Face) row i of a head turns with row i + head_dim / 2, with `interleaved` (the layout of
    the original Llama weights) row 2i with row 2i + 1.

    Attributes:
        heads: how many lie along `dim`; 1 for the weight of a norm over head_dim.
        to: the layout that they get; they have the other one.
        dim: the dimension of length heads x head_dim.
    """

    kind: Literal["permute_heads"] = "permute_heads"
    names: Names
    heads: Count
    to: RotaryLayout
    dim: Dim = 0


class Concatenate(Section):
    """Joins tensors along a dimension.

    Attributes:
        sizes: the length of each along `dim`; left out, all have the same.
    """

    kind: Literal["concatenate"] = "concatenate"
    take: Parts
    give: Name
    dim: Dim = 0
    sizes: Sizes | None = None

    @model_validator(mode="after")
    def _fits(self) -> "Concatenate":
        same_placeholders(self.give, *self.take)
        _one_size_each(self.take, self.sizes)
        return self


class Split(Section):
    """Divides a tensor along a dimension into parts of the given lengths."""

    kind: Literal["split"] = "split"
    take: Name
    give: Parts
    sizes: Sizes
    dim: Dim = 0

    @model_validator(mode="after")
    def _fits(self) -> "Split":
        same_placeholders(self.take, *self.give)
        _one_size_each(self.give, self.sizes)
        return self


class Chunk(Section):
    """Divides a tensor along a dimension into equal parts, as many as there are names."""

    kind: Literal["chunk"] = "chunk"
    take: Name
    give: Parts
    dim: Dim = 0

    @model_validator(mode="after")
    def _fits(self) -> "Chunk":
        same_placeholders(self.take, *self.give)
        return self


class Stack(Section):
    """Stacks tensors of one shape along a new dimension, in the order of a number in their names.

    Attributes:
        take: a pattern with one placeholder more than `give`: it stands for 0, 1, 2, ...
        count: how many there must be; left out, as many as there are, without a gap.
    """

    kind: Literal["stack"] = "stack"
    take: Name
    give: Name
    dim: Dim = 0
    count: Count | None = None

    @model_validator(mode="after")
    def _fits(self) -> "Stack":
        _index_of(self.take, self.give)
        return self

    @property
    def index(self) -> str:
        """The placeholder that counts."""
        return _index_of(self.take, self.give)


class Unstack(Section):
    """Takes a tensor apart along a dimension, which goes; the opposite of Stack.

    Attributes:
        give: a pattern with one placeholder more than `take`: it stands for 0, 1, 2, ...
        count: the length of `dim`; checked where given.
    """

    kind: Literal["unstack"] = "unstack"
    take: Name
    give: Name
    dim: Dim = 0
    count: Count | None = None

    @model_validator(mode="after")
    def _fits(self) -> "Unstack":
        _index_of(self.give, self.take)
        return self

    @property
    def index(self) -> str:
        """The placeholder that counts."""
        return _index_of(self.give, self.take)


class Shard(Section):
    """Makes DTensors of plain tensors that every rank has in full: each keeps its part. Sends nothing.

    Attributes:
        dims: the dimension that is divided over each axis of the device mesh; replicated over the axes not named.
    """

    kind: Literal["shard"] = "shard"
    names: Names
    dims: Annotated[dict[str, Dim], AfterValidator(some)]


class Gather(Section):
    """Makes plain tensors, in full on every rank, of DTensors. A collective: all ranks do it in the same order.

    Attributes:
        dims: how they are divided, see Shard; checked where given, and only then it can be inverted.
    """

    kind: Literal["gather"] = "gather"
    names: Names
    dims: Annotated[dict[str, Dim], AfterValidator(some)] | None = None
