import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.throughput import Throughput, throughput_text


def test_nothing_is_known_before_the_first_step() -> None:
    assert Throughput().rate is None
    assert Throughput().seconds_for(5) is None
    assert throughput_text(Throughput(), 5) == ""
    assert Throughput().after(8, 0.0).rate is None


@given(st.floats(0.1, 1000), st.lists(st.integers(1, 5000), min_size=1, max_size=20))
def test_a_steady_rate_is_known_from_the_first_step_on(rate: float, steps: list[int]) -> None:
    found = Throughput()
    for samples in steps:
        found = found.after(samples, samples / rate)
        assert found.rate == pytest.approx(rate)


def test_the_rate_follows_a_change() -> None:
    found = Throughput()
    for _ in range(100):
        found = found.after(100, 1.0)
    for _ in range(600):
        found = found.after(10, 1.0)
    assert found.rate == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize(
    ("samples", "seconds", "left", "text"),
    [
        (2500, 2.0, 250_000, "1,250 samples/s, 0:03:20 left"),
        (1, 8.0, 3, "0.125 samples/s, 0:00:24 left"),
        (100, 1.0, 100 * 86400 * 2, "100 samples/s, 2 days, 0:00:00 left"),
        (5, 1.0, 0, "5 samples/s, 0:00:00 left"),
    ],
)
def test_in_words(samples: int, seconds: float, left: int, text: str) -> None:
    assert throughput_text(Throughput().after(samples, seconds), left) == text
