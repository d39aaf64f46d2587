"""The order of the steps of a graph, from the patterns that they take and give."""

from graphlib import CycleError, TopologicalSorter

from keepstep.config.mapper import (
    Chunk,
    Composite,
    Concatenate,
    Drop,
    Graph,
    Leaf,
    Rename,
    Scope,
    Split,
    Stack,
    Unstack,
)
from keepstep.config.pattern import can_overlap
from keepstep.errors import ConfigError


def takes(step: Leaf | Composite) -> tuple[str, ...]:
    """Patterns of the names that a step takes."""
    match step:
        case Rename():
            return tuple(step.names)
        case Concatenate():
            return step.take
        case Split() | Chunk() | Stack() | Unstack():
            return (step.take,)
        case Scope():
            return tuple(step.prefix + one for inner in step.steps for one in takes(inner))
        case _ if isinstance(step, Composite):
            return tuple(one for inner in step.steps for one in takes(inner))
        case _:
            return step.names


def gives(step: Leaf | Composite) -> tuple[str, ...]:
    """Patterns of the names that a step gives."""
    match step:
        case Rename():
            return tuple(step.names.values())
        case Split() | Chunk():
            return step.give
        case Concatenate() | Stack() | Unstack():
            return (step.give,)
        case Drop():
            return ()
        case Scope():
            return tuple(step.target + one for inner in step.steps for one in gives(inner))
        case _ if isinstance(step, Composite):
            return tuple(one for inner in step.steps for one in gives(inner))
        case _:
            return step.names


def in_order(graph: Graph, at: str) -> list[int]:
    """Positions of a graph's steps, each after those that may give what it takes.

    A step that takes and gives one name (a transpose) comes after the others that give it.

    Raises:
        ConfigError: steps need each other in a circle. The message names them.
    """
    sorter: TopologicalSorter[int] = TopologicalSorter()
    steps = graph.steps
    for i, step in enumerate(steps):
        sorter.add(i)
        for j, other in enumerate(steps):
            if i != j and any(can_overlap(given, taken) for given in gives(other) for taken in takes(step)):
                sorter.add(i, j)
    try:
        return list(sorter.static_order())
    except CycleError as error:
        cycle = " > ".join(f"{i} {steps[i].kind}" for i in error.args[1])
        raise ConfigError(f"{at}: steps need each other in a circle: {cycle}") from None
