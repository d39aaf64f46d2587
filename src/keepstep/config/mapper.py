"""A model state mapper as a user declares it. `keepstep.plan.mapping_steps` says what the steps do.

In YAML each step is a mapping with its `kind`; in Python it is made by its class.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from keepstep.config.base import Section
from keepstep.config.mapper_steps import (
    Cast,
    Chunk,
    Concatenate,
    Drop,
    Dtype,
    Gather,
    Keep,
    PermuteHeads,
    Prefix,
    Rename,
    RotaryLayout,
    Select,
    Shard,
    Split,
    Stack,
    Transpose,
    Unstack,
    same_placeholders,
    some,
)

__all__ = [
    "KINDS",
    "Cast",
    "Chunk",
    "Composite",
    "Concatenate",
    "Drop",
    "Dtype",
    "Elementwise",
    "Gather",
    "Graph",
    "Keep",
    "Leaf",
    "MapperConfig",
    "Parallel",
    "PermuteHeads",
    "Rename",
    "RotaryLayout",
    "Scope",
    "Select",
    "Sequence",
    "Shard",
    "Split",
    "Stack",
    "Step",
    "Transpose",
    "Unstack",
]

Steps = Annotated[tuple["Step", ...], AfterValidator(some)]


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
        same_placeholders(self.prefix, self.target)
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


def _selects(step: Section) -> bool:
    return isinstance(step, Select) or any(_selects(inner) for inner in getattr(step, "steps", ()))


class Graph(Section):
    """Steps in any order: each is applied after those that give what it takes. Cycles are refused."""

    kind: Literal["graph"] = "graph"
    steps: Steps

    @model_validator(mode="after")
    def _no_select(self) -> "Graph":
        if any(_selects(step) for step in self.steps):
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
