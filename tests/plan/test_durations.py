import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.durations import DurationError, parse_duration, spoken


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("90m", 5400), ("90 min", 5400), ("6h", 21600), ("1d12h", 129600), ("0.5 H", 1800), ("1h 30m", 5400)],
)
def test_what_people_write(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "6", "h", "-1h", "0s", "6h x", "1e400d", "six hours", "6 w"])
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(DurationError, match="no length of time"):
        parse_duration(text)


@given(st.text(max_size=12))
def test_no_text_breaks_it(text: str) -> None:
    try:
        assert parse_duration(text) > 0
    except DurationError as error:
        assert repr(text) in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (0.2412, "0.24 s"), (12.3, "12 s"), (870, "14.5 min"), (22320, "6.2 h"), (267840, "3.1 days")],
)
def test_what_people_read(seconds: float, text: str) -> None:
    assert spoken(seconds) == text
