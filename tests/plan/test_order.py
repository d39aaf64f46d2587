import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.order import SampleOrder


@given(st.integers(1, 60), st.integers(0, 2**62), st.booleans(), st.integers(1, 4))
def test_every_epoch_holds_every_sample_once(length: int, seed: int, shuffle: bool, epochs: int) -> None:
    order = SampleOrder(length, seed=seed, shuffle=shuffle)
    stream = order.slice(0, length * epochs)
    for epoch in range(epochs):
        assert sorted(stream[epoch * length : (epoch + 1) * length]) == list(range(length))


@given(st.integers(1, 40), st.lists(st.integers(1, 50), max_size=6))
def test_slices_join_to_the_stream_wherever_they_are_cut(length: int, cuts: list[int]) -> None:
    whole = SampleOrder(length, seed=3, shuffle=True).slice(0, sum(cuts))
    position, joined = 0, []
    for count in cuts:
        joined += SampleOrder(length, seed=3, shuffle=True).slice(position, count)
        position += count
    assert joined == whole


def test_epochs_and_seeds_differ() -> None:
    order = SampleOrder(50, seed=1, shuffle=True)
    assert order.slice(0, 50) != order.slice(50, 50)
    assert order.slice(0, 50) != SampleOrder(50, seed=2, shuffle=True).slice(0, 50)


def test_the_order_is_the_same_in_every_version() -> None:
    # A checkpoint of last year must go on in the same order: a change of this line breaks every saved run.
    assert SampleOrder(10, seed=7, shuffle=True).slice(5, 10) == [4, 7, 6, 3, 5, 2, 6, 3, 7, 8]


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        SampleOrder(0, seed=1, shuffle=True)
