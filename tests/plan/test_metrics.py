"""Names of metrics, and what makes one value better than another."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.errors import ConfigError
from keepstep.plan.metrics import best_first, full_name, names_in, obstacle, shown
from keepstep.plan.scores import Measured

KNOWN = ["task/accuracy", "canary/accuracy", "task/loss", "canary/mmlu/stem"]


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("task/accuracy", "task/accuracy"),
        ("loss", "task/loss"),
        ("mmlu/stem", "canary/mmlu/stem"),
        ("other/f1", "other/f1"),
    ],
)
def test_a_name_without_its_set_is_taken_where_one_set_has_it(name: str, full: str) -> None:
    assert full_name(name, KNOWN) == full


def test_a_name_that_may_mean_several_lists_them() -> None:
    with pytest.raises(ConfigError, match="any of canary/accuracy, task/accuracy"):
        full_name("accuracy", KNOWN)
    with pytest.raises(ConfigError, match="no checkpoint has a metric f1; there are: canary/accuracy, canary/mmlu/s"):
        full_name("f1", KNOWN)
    with pytest.raises(ConfigError, match="none at all"):
        full_name("f1", [])


def test_what_cannot_be_compared_says_why() -> None:
    one = Measured(1, "d", "save-1", {"task/a": math.nan, "task/b": -math.inf, "task/c": 2.0, "task/d": 0.5})
    assert obstacle(None, "task/a") == "not scored yet"
    assert obstacle(one, "task/a") == "its task/a is NaN"
    assert obstacle(one, "task/b") == "its task/b is -inf"
    assert obstacle(one, "task/e") == "has no task/e"
    assert obstacle(one, "task/d") == ""
    doubled = Measured(1, "d", "save-1", {"task/c": 2.0}, {"task/c": (1.0, 2.0)}, {"canary": "killed"})
    assert obstacle(doubled, "task/c") == "task/c has two values: 1 and 2"
    assert obstacle(doubled, "canary/c") == "has no canary/c: scoring failed (killed)"


def test_names_are_counted() -> None:
    rows = [Measured(1, "a", "", {"task/a": 1.0}), Measured(2, "b", "", {"task/a": 2.0, "canary/a": 1.0})]
    assert names_in(rows) == {"canary/a": 1, "task/a": 2}


@given(st.dictionaries(st.integers(0, 50), st.sampled_from([0.0, -0.0, 0.5, 1.0, 7.25])))
def test_the_best_comes_first_and_of_equal_ones_the_earlier(values: dict[int, float]) -> None:
    highest, lowest = best_first(values, "max"), best_first(values, "min")
    assert sorted(highest) == sorted(lowest) == sorted(values)
    for order, sign in ((highest, 1), (lowest, -1)):
        for one, other in itertools.pairwise(order):
            assert sign * values[one] > sign * values[other] or (values[one] == values[other] and one < other)


def test_values_are_short() -> None:
    assert [shown(value) for value in (0.93, 1 / 3, math.nan, 5e-7)] == ["0.93", "0.333333", "NaN", "5e-07"]
