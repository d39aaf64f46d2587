"""Arithmetic of checkpoints: ranks, retention, time."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.estimate import Estimate, Ranks, Rates, Retention, complete, estimate, measure, retention, saves_of
from keepstep.plan.model_size import linear, lump
from keepstep.plan.training_size import Content, Held, Recipe, content_of

LLAMA_8B = 8_030_261_248


def parts(found: Estimate) -> dict[str, int]:
    return {part.name: part.size for part in found.parts}


@pytest.mark.parametrize(
    ("recipe", "one", "three"),
    [
        (Recipe("bf16", "none"), 16.06, 48.2),
        (Recipe("bf16", optimizer_dtype="same"), 48.2, 144.5),
        (Recipe("bf16"), 80.3, 240.9),
        (Recipe("fp32"), 96.4, 289.1),
        (Recipe("bf16", master_weights=True), 112.4, 337.3),
        (Recipe("bf16", "adamw-8bit"), 32.4, 97.1),
        (Recipe("fp32", "none"), 32.1, 96.4),
    ],
)
def test_three_checkpoints_of_a_model_of_8b(recipe: Recipe, one: float, three: float) -> None:
    """docs/estimate.md has these figures, in GB."""
    found = estimate("", content_of(lump(LLAMA_8B), recipe), Ranks(), retention(3))
    tensors = found.size - parts(found)["other"]
    assert tensors / 1e9 == pytest.approx(one, abs=0.06)
    assert 3 * tensors / 1e9 == pytest.approx(three, abs=0.06)
    assert parts(found)["other"] < tensors / 1000
    assert (found.kept_size, found.peak_size) == (3 * found.size, 4 * found.size)


@given(st.integers(1, 70), st.integers(1, 9), st.integers(1, 9), st.integers(1, 5))
def test_the_fullest_rank_has_the_first_rows(rows: int, columns: int, shard: int, replicate: int) -> None:
    content = Content((Held("weights", (rows, columns), 4, 3),), 0, 0, 0)
    (weights, _) = measure(content, Ranks(shard, replicate))
    assert weights.size == 12 * rows * columns
    # As torch.chunk divides them: no rank has more than the first.
    shards = [len(range(rows)[at : at + math.ceil(rows / shard)]) for at in range(0, rows, math.ceil(rows / shard))]
    assert sum(shards) == rows
    assert weights.rank_size == math.ceil(12 * columns * shards[0] / replicate)


def test_one_rank_writes_all() -> None:
    found = estimate("", content_of(linear("up", 300, 400, 2, bias=True), Recipe()), Ranks())
    assert found.rank_size == found.size
    assert found.keep is found.kept_size is found.peak_size is found.save_seconds is None


def test_replicas_divide_the_writing_and_store_nothing_twice() -> None:
    content = content_of(linear("up", 300, 400, 2), Recipe())
    one, four = (estimate("", content, Ranks(1, replicate)) for replicate in (1, 4))
    assert parts(one)["weights"] == parts(four)["weights"]
    assert four.parts[0].rank_size == one.parts[0].size // 4


def test_retention() -> None:
    assert retention(3) == Retention(3, 4)
    assert retention(3, 2) == Retention(2, 2)
    assert retention(3, 3) == Retention(3, 3)
    assert retention(3, 9) == Retention(3, 4)
    assert retention(None, 9) == Retention(9, 9)
    assert retention(None) is None
    assert retention(3, 40, more=7) == Retention(10, 11)
    assert retention(3, 8, more=7) == Retention(8, 8)
    assert retention(None, None, 7, 5) == Retention(None, None, 5)


@pytest.mark.parametrize(
    ("kept", "budget", "there"),
    [
        (Retention(10, 11), 4, (4, 5)),
        (Retention(10, 11), 0, (1, 2)),
        (Retention(2, 2), 4, (2, 2)),
        (Retention(2, 3), 4, (2, 3)),
        (Retention(None, None), 4, (4, 5)),
    ],
)
def test_a_budget_counts_checkpoints_by_their_size(kept: Retention, budget: int, there: tuple[int, int]) -> None:
    one = estimate("", content_of(lump(10**9), Recipe()), Ranks())
    found = complete(one, replace(kept, budget=budget * one.size + 5), None)
    assert (found.keep, found.peak_size) == (there[0], there[1] * one.size)


@pytest.mark.parametrize(
    ("period", "saves"),
    [(100, 10), (300, 4), (2000, 1), ("last_step", 1), ("disable", 0), ("auto", None), (None, None)],
)
def test_saves_of_a_run(period: int | str | None, saves: int | None) -> None:
    assert saves_of(1000, period) == saves


def test_time() -> None:
    content = content_of(lump(10**9), Recipe())
    shared = estimate("", content, Ranks(4, 2), None, Rates(1e9, 2e9))
    assert shared.save_seconds == shared.size / 1e9
    assert shared.resume_seconds == shared.size / 2e9
    apart = estimate("", content, Ranks(4, 2), None, Rates(1e9, 2e9, each_rank=True))
    assert apart.save_seconds == apart.rank_size / 1e9
    assert apart.resume_seconds == 2 * apart.rank_size / 2e9  # each replica reads the whole shard
