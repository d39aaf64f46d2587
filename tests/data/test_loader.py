import random
from typing import Any

import numpy as np
import pytest
import torch

from keepstep.data.loader import GlobalBatchLoader
from keepstep.errors import StateMismatchError
from keepstep.plan.batching import divide


class Numbers:
    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index * 10


def loader(rank: int = 0, ranks: int = 1, length: int = 50, **options: Any) -> GlobalBatchLoader:
    settings = {"seed": 3, "shuffle": True} | options
    return GlobalBatchLoader(Numbers(length), divide(8, 2, ranks), rank, **settings)


def take(source: GlobalBatchLoader, steps: int) -> list[list[int]]:
    batches = iter(source)
    return [[i for micro in next(batches) for i in micro.indices[: micro.samples]] for _ in range(steps)]


def test_a_batch_holds_the_samples_of_its_indices() -> None:
    (micro, *_) = next(iter(loader()))
    assert micro.data.tolist() == [index * 10 for index in micro.indices]
    assert micro.samples == 2


def test_each_epoch_holds_each_sample_once_and_no_batch_is_short() -> None:
    steps = take(loader(), 25)
    assert all(len(step) == 8 for step in steps)
    stream = [i for step in steps for i in step]
    for epoch in range(4):
        assert sorted(stream[epoch * 50 : (epoch + 1) * 50]) == list(range(50))


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_only_divide_the_batch(ranks: int) -> None:
    whole = take(loader(), 12)
    parts = [take(loader(rank, ranks), 12) for rank in range(ranks)]
    assert [[i for part in parts for i in part[step]] for step in range(12)] == whole


@pytest.mark.parametrize("span", [(0, 50), (13, 30), (47, 50), (20, 20)])
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_span_is_read_once_and_positions_are_those_of_the_whole(span: tuple[int, int], ranks: int) -> None:
    settings = {"shuffle": False, "epochs": 1, "span": span}
    sources = [loader(rank, ranks, **settings) for rank in range(ranks)]
    steps = sources[0].steps_left or 0
    assert steps == -(-(span[1] - span[0]) // 8)
    found = [i for source in sources for step in take(source, steps) for i in step]
    assert sorted(found) == list(range(*span))
    assert [(source.position, source.done, source.steps_left) for source in sources] == [
        (span[1], span[1] - span[0], 0)
    ] * ranks
    again = loader(0, ranks, **settings)
    again.load_state_dict(sources[0].state_dict())
    assert (again.steps_left, list(again)) == (0, [])


@pytest.mark.parametrize("stop", range(13))
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_position_goes_on_under_any_number_of_ranks(stop: int, ranks: int) -> None:
    whole = take(loader(), 13)
    source = loader()
    take(source, stop)
    state = source.state_dict()
    rest = []
    for rank in range(ranks):
        target = loader(rank, ranks)
        target.load_state_dict(state)
        rest.append(take(target, 13 - stop))
    assert [[i for part in rest for i in part[step]] for step in range(13 - stop)] == whole[stop:]


def test_workers_and_what_they_prefetch_change_nothing() -> None:
    whole = take(loader(), 10)
    source = loader(num_workers=2)
    assert take(source, 4) == whole[:4]
    assert source.position == 32
    target = loader(num_workers=1)
    target.load_state_dict(source.state_dict())
    assert take(target, 6) == whole[4:]


def test_iterating_draws_no_global_random_number() -> None:
    before = torch.get_rng_state()
    take(loader(), 9)
    take(loader(num_workers=1), 2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("length", [0, 1, 3, 8, 9, 16, 21])
def test_one_pass_in_order_with_a_short_last_batch(length: int, ranks: int) -> None:
    sources = [loader(rank, ranks, length, shuffle=False, epochs=1) for rank in range(ranks)]
    steps = sources[0].steps_left
    assert steps == -(-length // 8)
    seen: list[int] = []
    passes = []
    for batch in zip(*sources, strict=True):
        seen += [i for part in batch for micro in part for i in micro.indices[: micro.samples]]
        passes.append({len(part) for part in batch})
    assert seen == list(range(length))
    assert len(passes) == steps
    assert all(len(counts) == 1 for counts in passes)  # sharded models meet in every pass
    assert all(source.position == length for source in sources)


@pytest.mark.parametrize("change", [{"length": 51}, {"seed": 4}, {"shuffle": False}])
def test_another_order_is_refused(change: dict[str, Any]) -> None:
    state = loader().state_dict()
    name = next(iter(change))
    with pytest.raises(StateMismatchError, match=f"{name} .* when saved, .* now"):
        loader(**change).load_state_dict(state)


class Augmented(Numbers):
    """Draws from all three global random states for each sample."""

    def __getitem__(self, index: int) -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(1).item()

    def collate(self, samples: list[Any]) -> tuple[list[Any], float]:
        return samples, torch.rand(1).item()


def augmented(ranks: int = 1, micro: int = 2, **options: Any) -> dict[tuple[int, int], Any]:
    """What was drawn for each sample, by epoch and index."""
    drawn: dict[tuple[int, int], Any] = {}
    for rank in range(ranks):
        division = divide(8, micro, ranks)
        source = GlobalBatchLoader(Augmented(20), division, rank, seed=3, shuffle=True, **options)
        begin = rank * (8 // ranks)
        for step, batch in zip(range(5), source, strict=False):
            position = step * 8 + begin
            for micro_batch in batch:
                for index, sample in zip(micro_batch.indices, micro_batch.data[0], strict=True):
                    drawn[position // 20, index] = sample
                    position += 1
    return drawn


def test_random_numbers_of_a_sample_depend_on_nothing_but_seed_epoch_and_index() -> None:
    expected = augmented()
    assert len(set(expected.values())) == 40  # two epochs, none alike
    assert augmented(num_workers=2) == expected
    assert augmented(ranks=2) == expected
    assert augmented(ranks=4, micro=1) == expected
    torch.manual_seed(99)
    random.seed(99)
    assert augmented(num_workers=1, micro=8) == expected


def test_what_a_data_set_draws_does_not_touch_the_model_s_random_numbers() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    augmented()
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


class Texts(Numbers):
    def length_of(self, index: int) -> int:
        return index * 7 % 13


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (2, 0), (4, 0), (1, 2)])
def test_grouped_by_length_a_batch_holds_the_same_samples(ranks: int, workers: int) -> None:
    sources = [
        GlobalBatchLoader(
            Texts(50),
            divide(16, 4, ranks),
            rank,
            seed=0,
            shuffle=False,
            epochs=1,
            num_workers=workers,
            length_budget=20,
        )
        for rank in range(ranks)
    ]
    for step, parts in enumerate(zip(*sources, strict=True)):
        assert len({len(part) for part in parts}) == 1
        found = []
        for rank, part in enumerate(parts):
            assert [micro.is_last for micro in part] == [False] * (len(part) - 1) + [True]
            for micro in part:
                assert micro.samples <= 1 or micro.samples * max(map(Texts(50).length_of, micro.indices)) <= 20
                assert all(place // (16 // ranks) == rank for place in micro.places[: micro.samples])
                found += list(zip(micro.places, micro.indices, micro.data.tolist(), strict=True))[: micro.samples]
        indices = range(step * 16, min(step * 16 + 16, 50))
        assert sorted(found) == [(place, index, index * 10) for place, index in enumerate(indices)]
    assert step == 3
    assert sources[0].position == 50


def test_places_are_those_in_the_global_batch() -> None:
    steps = [[micro.places for micro in step] for step in loader(1, 2, 10, shuffle=False, epochs=1)]
    assert steps == [[(4, 5), (6, 7)], [(1,)]]
