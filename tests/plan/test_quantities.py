import pytest

from keepstep.plan.quantities import QuantityError, parse_count, parse_rate


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8B", 8_000_000_000),
        ("42m", 42_000_000),
        ("0.5B", 500_000_000),
        ("8030261248", 8_030_261_248),
        ("8_030_261_248", 8_030_261_248),
        ("8,030,261,248", 8_030_261_248),
        ("1.1T", 1_100_000_000_000),
    ],
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "8BB", "8 GB", "0.1", "1.5", "1.0005K", "9" * 400])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(QuantityError, match="write 8B"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("2GB/s", 2_000_000_000),
        ("2 GB / s", 2_000_000_000),
        ("500MiB/s", 500 * 2**20),
        ("10Gbit/s", 1_250_000_000),
        ("10gbps", 1_250_000_000),
        ("1000", 1000),
    ],
)
def test_rates(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "0GB/s", "fast", "2GB/h", "1bit/s"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(QuantityError, match="write 2GB/s"):
        parse_rate(text)
