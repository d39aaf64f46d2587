"""What is counted for each optimizer against what torch's hold."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from keepstep.plan.model_size import ModelSizeError, linear, lump
from keepstep.plan.training_size import OPTIMIZERS, Recipe, assumptions, content_of

WEIGHTS = tuple(linear("up", 5, 7, 3, bias=True))


def size(recipe: Recipe, part: str = "optimizer", weights: Any = WEIGHTS) -> int:
    return sum(held.size for held in content_of(weights, recipe).held if held.part == part)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("adamw", torch.optim.AdamW),
        ("sgd", torch.optim.SGD),
        ("sgd-momentum", partial(torch.optim.SGD, momentum=0.9)),
        ("adafactor", torch.optim.Adafactor),
    ],
)
def test_as_torch_has_it(name: str, make: Callable[..., torch.optim.Optimizer], dtype: str) -> None:
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    parameters = [torch.ones(w.shape, dtype=kind, requires_grad=True) for w in WEIGHTS for _ in range(w.count)]
    optimizer = make(parameters, lr=0.1)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    tensors = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    assert size(Recipe(dtype, name, "same")) == sum(t.nbytes for t in tensors if t.dim())


def test_a_number_of_parameters() -> None:
    adapter = lump(42_000_000)
    assert size(Recipe("fp32"), "weights", adapter) == 168_000_000
    assert size(Recipe("bf16"), "weights", adapter) == 84_000_000
    assert size(Recipe("bf16"), "optimizer", adapter) == 336_000_000
    assert size(Recipe("bf16", optimizer_dtype="same"), "optimizer", adapter) == 168_000_000
    assert size(Recipe("bf16", "lion"), "optimizer", adapter) == 168_000_000
    assert size(Recipe("bf16", "none"), "optimizer", adapter) == 0
    assert size(Recipe("bf16", master_weights=True), "master weights", adapter) == 168_000_000


def test_eight_bits_with_scales_and_tables_and_small_ones_in_fp32() -> None:
    assert size(Recipe(optimizer="adamw-8bit"), weights=lump(4096)) == 2 * (4096 + 4 * 16 + 4 * 256)
    assert size(Recipe(optimizer="adamw-8bit"), weights=lump(4095)) == 2 * 4 * 4095


def test_adapters_are_trained_in_the_models_place() -> None:
    recipe = Recipe("bf16", rank=2)
    found = content_of(WEIGHTS, recipe)
    count = 3 * 2 * (5 + 7)
    assert (found.parameters, found.trained, found.tensors, found.digests) == (3 * 42 + count, count, 6, 6)
    assert [(held.part, held.size) for held in found.held if held.part != "optimizer"] == [
        ("adapter", 3 * 2 * 5 * 4),
        ("adapter", 3 * 7 * 2 * 4),
    ]
    assert size(recipe) == 8 * count
    whole = content_of(WEIGHTS, Recipe("bf16", rank=2, with_frozen=True))
    assert sum(held.size for held in whole.held if held.part == "frozen weights") == 3 * 42 * 2
    assert whole.digests == 0


def test_some_are_frozen() -> None:
    found = content_of(lump(100), Recipe("bf16", trainable=10, with_frozen=True))
    assert [(held.part, held.size) for held in found.held] == [
        ("weights", 20),
        ("frozen weights", 180),
        ("optimizer", 80),
    ]
    assert len(content_of(lump(100), Recipe(trainable=10)).held) == 2
    assert content_of(lump(100), Recipe(trainable=100, with_frozen=True)).parameters == 100


@pytest.mark.parametrize(
    ("recipe", "problem"),
    [
        (Recipe(trainable=43), "43 trained parameters of 42"),
        (Recipe(master_weights=True), "need no copy"),
        (Recipe(optimizer="adafactor"), "rows and columns"),
        (Recipe(rank=2), "needs the shapes"),
        (Recipe(rank=2, trainable=2), "one of the two"),
    ],
)
def test_what_cannot_be_told(recipe: Recipe, problem: str) -> None:
    with pytest.raises(ModelSizeError, match=problem):
        content_of(lump(42), recipe)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_says_what_it_rests_on(optimizer: str) -> None:
    (said,) = assumptions(Recipe("bf16", optimizer, "same", rank=4))
    assert said.startswith("adapters in fp32, ")
    assert said.endswith("frozen weights are not held")
    assert optimizer in said or optimizer == "none"
