"""The steps of a model state mapper, as a user declares them. `keepstep.plan.mapping_steps` says what they do."""

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


def _some(values: _Some) -> _Some:
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
Names = Annotated[tuple[Name, ...], BeforeValidator(_one_or_more), AfterValidator(_some)]
Parts = Annotated[tuple[Name, ...], AfterValidator(_several)]
Prefix = Annotated[str, AfterValidator(_is_prefix)]
Dim = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1)]
Sizes = tuple[Count, ...]
Steps = Annotated[tuple["Step", ...], AfterValidator(_some)]


def _same_placeholders(*texts: str) -> None:
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
    names: Annotated[dict[Name, Name], AfterValidator(_some)]

    @model_validator(mode="after")
    def _fits(self) -> "Rename":
        for old, new in self.names.items():
            _same_placeholders(old, new)
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
        _same_placeholders(self.give, *self.take)
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
        _same_placeholders(self.take, *self.give)
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
        _same_placeholders(self.take, *self.give)
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
    dims: Annotated[dict[str, Dim], AfterValidator(_some)]


class Gather(Section):
    """Makes plain tensors, in full on every rank, of DTensors. A collective: all ranks do it in the same order.

    Attributes:
        dims: how they are divided, see Shard; checked where given, and only then it can be inverted.
    """

    kind: Literal["gather"] = "gather"
    names: Names
    dims: Annotated[dict[str, Dim], AfterValidator(_some)] | None = None


class Scope(Section):
    """Steps on the names under a prefix, which they do not see; what they give gets the prefix `to`.

    A prefix with placeholders stands for each prefix that it matches: the steps are applied to each by itself. Names
    that no inner step takes stay outside.

    Attributes:
        to: the new prefix, with the same placeholders; left out, the old one.
    """

    kind: Literal["scope"] = "scope"
    prefix: Prefix
    to: Prefix | None = None
    steps: Steps

    @model_validator(mode="after")
    def _fits(self) -> "Scope":
        _same_placeholders(self.prefix, self.target)
        return self

    @property
    def target(self) -> str:
        """The prefix of what the steps give."""
        return self.prefix if self.to is None else self.to


class Sequence(Section):
    """Steps one after another; what a step does not take goes on to the next."""

    kind: Literal["sequence"] = "sequence"
    steps: Steps


class Parallel(Section):
    """Steps that all take from the same names: none sees what another gives."""

    kind: Literal["parallel"] = "parallel"
    steps: Steps


class Graph(Section):
    """Steps in any order: each is applied after those that give what it takes. Cycles are refused."""

    kind: Literal["graph"] = "graph"
    steps: Steps

    @model_validator(mode="after")
    def _no_select(self) -> "Graph":
        if any(isinstance(step, Select) for step in self.steps):
            raise ValueError("select drops whatever is there at its turn, and a graph gives it none; use drop")
        return self


Elementwise = Keep | Select | Cast | Transpose | PermuteHeads | Shard | Gather
Leaf = Rename | Drop | Elementwise | Concatenate | Split | Chunk | Stack | Unstack
Composite = Scope | Sequence | Parallel | Graph
Step = Annotated[Leaf | Composite, Field(discriminator="kind")]


class MapperConfig(Section):
    """A model state mapper: its steps, one after another."""

    steps: Steps


KINDS: dict[str, type[Section]] = {
    one.model_fields["kind"].default: one
    for one in (
        Rename, Keep, Drop, Select, Cast, Transpose, PermuteHeads, Concatenate, Split, Chunk, Stack, Unstack,
        Shard, Gather, Scope, Sequence, Parallel, Graph,
    )
}  # fmt: skip

for _model in (Scope, Sequence, Parallel, Graph, MapperConfig):
    _model.model_rebuild()
