"""The parameters of a model as shapes, and those of an adapter on it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ALL_LINEAR = "all-linear"
# The output layer, by the name that most models give it.
HEAD = "lm_head"


class ModelSizeError(ValueError):
    """The parameters cannot be told from what was given."""


@dataclass(frozen=True)
class Weight:
    """Parameters of one shape.

    Attributes:
        module: the name, or the end of it, of the module that holds them; empty where the shape is not known.
        shape: of one of them.
        count: how many there are.
        is_linear: the matrix of a linear layer, which an adapter may change.
    """

    module: str
    shape: tuple[int, ...]
    count: int = 1
    is_linear: bool = False

    @property
    def parameters(self) -> int:
        """Numbers in all of them."""
        return self.count * math.prod(self.shape)


def lump(parameters: int) -> tuple[Weight, ...]:
    """So many parameters, of which nothing else is known."""
    return (Weight("", (parameters,)),) if parameters else ()


def is_lump(weights: Iterable[Weight]) -> bool:
    """Whether shapes are unknown."""
    return any(not weight.module for weight in weights)


def parameters_of(weights: Iterable[Weight]) -> int:
    """Numbers in all of them."""
    return sum(weight.parameters for weight in weights)


def linear(module: str, inputs: int, outputs: int, count: int, *, bias: bool = False) -> list[Weight]:
    """The parameters of `count` linear layers."""
    found = [Weight(module, (outputs, inputs), count, is_linear=True)]
    return [*found, Weight(module, (outputs,), count)] if bias else found


def lora(weights: Sequence[Weight], rank: int, targets: Sequence[str]) -> tuple[Weight, ...]:
    """The factors of a LoRA adapter: (rank, inputs) and (outputs, rank) for each adapted layer (arXiv:2106.09685).

    Args:
        weights: of the base model.
        rank: r.
        targets: ends of modules' names, as PEFT matches them, or "all-linear": all linear layers but the output's.

    Raises:
        ModelSizeError: shapes are unknown, or a target fits no linear layer.
    """
    if is_lump(weights):
        raise ModelSizeError("the size of an adapter needs the shapes of the layers: give a config.json of the model")
    layers = [weight for weight in weights if weight.is_linear]
    for target in targets:
        if target != ALL_LINEAR and not any(_fits(layer, target) for layer in layers):
            known = ", ".join(sorted({layer.module.rpartition(".")[2] for layer in layers}))
            raise ModelSizeError(f"no linear layer is called {target}; there are {known}")
    return tuple(
        factor
        for layer in layers
        if any(_fits(layer, target) for target in targets)
        for factor in (
            Weight(f"{layer.module}.lora_A", (rank, layer.shape[1]), layer.count),
            Weight(f"{layer.module}.lora_B", (layer.shape[0], rank), layer.count),
        )
    )


def _fits(layer: Weight, target: str) -> bool:
    if target == ALL_LINEAR:
        return layer.module != HEAD
    return layer.module == target or layer.module.endswith(f".{target}")
