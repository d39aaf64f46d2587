from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.batching import divide
from keepstep.plan.by_length import micro_batches_by_length, pack

LENGTHS = st.lists(st.integers(0, 50), max_size=40)


def test_samples_of_like_length_are_together() -> None:
    assert pack([3, 9, 1, 8, 2, 3], budget=18, most=4) == [[1, 3], [0, 5, 4, 2]]


def test_one_that_is_longer_than_the_budget_is_alone() -> None:
    assert pack([5, 100, 5, 50], budget=50, most=8) == [[1], [3], [0, 2]]


@given(LENGTHS, st.integers(1, 120), st.integers(1, 8))
def test_each_sample_once_and_no_group_above_the_budget(lengths: list[int], budget: int, most: int) -> None:
    groups = pack(lengths, budget, most)
    assert sorted(place for group in groups for place in group) == list(range(len(lengths)))
    for group in groups:
        assert 1 <= len(group) <= most
        assert len(group) == 1 or len(group) * max(lengths[place] for place in group) <= budget


@given(st.lists(st.integers(0, 50), min_size=1, max_size=24), st.sampled_from([1, 2, 3, 4]), st.integers(1, 120))
def test_ranks_keep_their_shares_and_make_as_many_passes(lengths: list[int], ranks: int, budget: int) -> None:
    division = divide(24, None, ranks)
    batch = [f"sample {place}" for place in range(len(lengths))]
    parts = [micro_batches_by_length(batch, lengths, division, rank, budget) for rank in range(ranks)]
    assert len({len(part) for part in parts}) == 1
    assert all(samples and len(samples) >= real for part in parts for samples, real in part)
    share = 24 // ranks
    for rank, part in enumerate(parts):
        real = {sample for samples, count in part for sample in samples[:count]}
        assert real == set(batch[rank * share : (rank + 1) * share])
        assert sum(count for _, count in part) == len(real)


def test_who_has_no_sample_repeats_the_shortest() -> None:
    division = divide(4, None, 2)
    assert micro_batches_by_length("ab", [7, 3], division, 1, 7) == [(["b"], 0)] * 2
