"""What a model state mapper is going to do, as data: every tensor, every operation, before any of them moves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keepstep.config.mapper import Leaf


@dataclass(frozen=True)
class TensorSpec:
    """What is known of a tensor before it is read.

    Attributes:
        shape: of a DTensor, the one of the whole.
        dtype: as torch names it, without `torch.`.
        shards: of a DTensor, (axis of the device mesh, dimension that is divided over it), sorted; else empty.
    """

    shape: tuple[int, ...]
    dtype: str
    shards: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        shards = ", ".join(f"{dim} over {axis}" for axis, dim in self.shards)
        return f"{self.dtype}{list(self.shape)}" + (f" (dimension {shards})" if shards else "")


# Stands for what cannot be known, since the step before has a problem that is told already.
UNKNOWN = TensorSpec((), "unknown")


@dataclass(frozen=True)
class Value:
    """A tensor at one place in the mapper. Two with the same name differ in `id`.

    Attributes:
        id: a number of its own within the plan.
        name: what it is called there, in full.
        spec: its shape and dtype.
    """

    id: int
    name: str
    spec: TensorSpec


@dataclass(frozen=True)
class Operation:
    """One step applied to some tensors.

    Attributes:
        step: the declaration.
        at: where it stands in the mapper: position after position, and its kind (`steps.2.0 concatenate`).
        takes: what it needs.
        gives: what it makes.
    """

    step: Leaf
    at: str
    takes: tuple[Value, ...]
    gives: tuple[Value, ...]


@dataclass(frozen=True)
class PlannedTensor:
    """An output, and how it comes about.

    Attributes:
        name: its name.
        spec: its shape and dtype.
        inputs: names of the tensors that are read for it.
        steps: the steps on the way to it, first to last, each once.
    """

    name: str
    spec: TensorSpec
    inputs: tuple[str, ...]
    steps: tuple[str, ...]

    def __str__(self) -> str:
        inputs = ", ".join(self.inputs) if len(self.inputs) <= 4 else f"{self.inputs[0]} .. {self.inputs[-1]}"
        more = f" ({len(self.inputs)} tensors)" if len(self.inputs) > 4 else ""
        return f"{self.name} {self.spec} <- {inputs}{more} [{' > '.join(self.steps)}]"


@dataclass(frozen=True)
class Group:
    """Operations that share tensors, directly or through others; it needs nothing of any other group.

    Attributes:
        operations: in an order in which each finds what it takes.
        outputs: what the group is there for.
    """

    operations: tuple[Operation, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True)
class MappingPlan:
    """What a mapper makes of given tensors.

    Attributes:
        sources: the tensors that are read, by name.
        operations: in an order in which each finds what it takes.
        outputs: what it gives; an output's value is a source or given by an operation.
        dropped: names of the tensors that a step takes and nothing comes of; they are never read.
    """

    sources: tuple[Value, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[Value, ...]
    dropped: tuple[str, ...]

    @property
    def tensors(self) -> tuple[PlannedTensor, ...]:
        """Each output with its inputs and the steps between them, in the order of the outputs."""
        inputs: dict[int, tuple[str, ...]] = {one.id: (one.name,) for one in self.sources}
        steps: dict[int, tuple[str, ...]] = {one.id: () for one in self.sources}
        for operation in self.operations:
            came_from = tuple(dict.fromkeys(name for one in operation.takes for name in inputs[one.id]))
            way = dict.fromkeys(step for one in operation.takes for step in steps[one.id])
            for given in operation.gives:
                inputs[given.id], steps[given.id] = came_from, (*way, operation.at)
        return tuple(PlannedTensor(one.name, one.spec, inputs[one.id], steps[one.id]) for one in self.outputs)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The parts of the plan that have no tensor in common: what may be done apart, in memory or on other ranks."""
        return tuple(_groups(self.operations, self.outputs))

    @property
    def names(self) -> dict[str, TensorSpec]:
        """The outputs by name: what the next mapper, or the inverse of this one, is planned with."""
        return {one.name: one.spec for one in self.outputs}

    def __str__(self) -> str:
        lines = [str(one) for one in self.tensors]
        return "\n".join([*lines, *(f"{name} is dropped" for name in self.dropped)])


def _groups(operations: Sequence[Operation], outputs: Sequence[Value]) -> Iterator[Group]:
    parents: dict[int, int] = {}

    def root(id_: int) -> int:
        while parents.setdefault(id_, id_) != id_:
            parents[id_] = id_ = parents[parents[id_]]
        return id_

    for operation in operations:
        first, *others = (one.id for one in (*operation.takes, *operation.gives))
        for other in others:
            parents[root(other)] = root(first)
    own_operations: dict[int, list[Operation]] = {}
    own_outputs: dict[int, list[Value]] = {}
    for operation in operations:
        own_operations.setdefault(root(operation.takes[0].id), []).append(operation)
    for output in outputs:
        own_outputs.setdefault(root(output.id), []).append(output)
    for key, values in own_outputs.items():
        yield Group(tuple(own_operations.get(key, ())), tuple(values))
