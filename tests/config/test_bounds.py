"""Bounds that scores must keep."""

import math

import pytest

from keepstep.config.bounds import Guard, parse_guard
from keepstep.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value", "admits"),
    [("a>=1", 1, True), ("a>1", 1, False), ("a<=1", 1, True), ("a<1", 1, False), ("a==1", 1, True), ("a!=1", 1, False)]
    + [(f"a{sign}1", math.nan, False) for sign in (">=", ">", "<=", "<", "==", "!=")],
)
def test_guards_compare_and_nan_fails_each(text: str, value: float, admits: bool) -> None:
    assert parse_guard(text).admits(value) is admits


def test_a_guard_is_read_as_it_is_written() -> None:
    assert parse_guard(" canary/mmlu-5.1 stem <= -1e-3 ") == Guard("canary/mmlu-5.1 stem", "<=", -0.001)
    assert [str(parse_guard(text)) for text in ("a>=0.9", "a>=0.99999999", "a<1234567", "a<1e-7", "a<inf")] == [
        "a>=0.9",
        "a>=0.99999999",
        "a<1234567.0",
        "a<1e-07",
        "a<inf",
    ]


@pytest.mark.parametrize(
    "text", ["", "a", "a>", ">=0.9", "a=0.9", "a>=x", "a>=nan", "a>=1>=2", "a => 1", "0.9<", "a>1_0", "a>\u0661"]
)
def test_what_is_no_guard_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a metric, one of"):
        parse_guard(text)
