import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from keepstep.plan.batching import BatchingError, divide, micro_batches


def test_a_batch_is_divided_over_ranks_and_passes() -> None:
    division = divide(32, 8, 2)
    assert division.accumulation == 2
    assert micro_batches(list(range(32)), division, 1) == [(list(range(16, 24)), 8), (list(range(24, 32)), 8)]


@pytest.mark.parametrize(
    ("batch", "micro", "ranks", "text"),
    [(32, None, 3, "rank counts that work: 1, 2, 4"), (32, 5, 2, "sizes that work: 1, 2, 4, 8, 16")],
)
def test_what_does_not_divide_is_refused_with_what_would(batch: int, micro: int | None, ranks: int, text: str) -> None:
    with pytest.raises(BatchingError, match=text):
        divide(batch, micro, ranks)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(1, 200))
def test_a_division_is_a_partition_in_order_and_all_ranks_pass_equally_often(
    ranks: int, micro: int, accumulation: int, count: int
) -> None:
    division = divide(ranks * micro * accumulation, micro, ranks)
    assume(count <= division.global_batch_size)
    batch = list(range(count))
    parts = [micro_batches(batch, division, rank) for rank in range(ranks)]
    assert [i for part in parts for indices, real in part for i in indices[:real]] == batch
    assert len({len(part) for part in parts}) == 1
    assert all(indices and len(indices) <= micro for part in parts for indices, _ in part)
