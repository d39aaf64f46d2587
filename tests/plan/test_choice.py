"""The best checkpoint by a metric and guards, and why each other one is not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.config.bounds import Guard, parse_guard
from keepstep.plan.choice import Choice, Standing, choose, why_none
from keepstep.plan.scores import Measured


def scored(step: int, digest: str = "", **metrics: float) -> Measured:
    named = {f"task/{name}" if "_" not in name else name.replace("_", "/"): value for name, value in metrics.items()}
    return Measured(step, digest or f"d{step}", f"save-{step}", named)


def there(*steps: int) -> dict[int, str]:
    return {step: f"d{step}" for step in steps}


def told(choice: Choice) -> dict[int, tuple[str, str]]:
    return {row.step: (row.standing.value, row.reason) for row in choice.rows}


def test_the_highest_or_the_lowest_is_chosen() -> None:
    rows = [scored(10, a=0.5), scored(20, a=0.9), scored(30, a=0.7)]
    choice = choose(rows, there(10, 20, 30), "task/a", "max")
    assert choice.chosen == 20
    assert told(choice) == {
        10: ("eligible", "number 3 of 3 eligible"),
        20: ("chosen", "the highest task/a of 3 eligible"),
        30: ("eligible", "number 2 of 3 eligible"),
    }
    assert choose(rows, there(10, 20, 30), "a", "min").chosen == 10


def test_of_equal_ones_the_earlier_is_chosen() -> None:
    choice = choose([scored(30, a=0.9), scored(10, a=0.9)], there(10, 30), "task/a", "max")
    assert choice.chosen == 10
    assert told(choice)[30] == ("eligible", "equal to step 10, which is earlier")


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_never_wins(odd: float, mode: str) -> None:
    choice = choose([scored(10, a=odd), scored(20, a=0.1)], there(10, 20), "task/a", mode)  # type: ignore[arg-type]
    assert choice.chosen == 20
    assert told(choice)[10][0] == "left out"


def test_guards_leave_out_and_say_the_value() -> None:
    rows = [
        scored(10, a=0.9, canary_a=0.5),
        scored(20, a=0.8, canary_a=0.9),
        scored(30, a=0.95, canary_a=math.nan),
        scored(40, a=0.99),
    ]
    choice = choose(rows, there(10, 20, 30, 40), "task/a", "max", [parse_guard("canary/a >= 0.9")])
    assert choice.chosen == 20
    assert choice.metrics == ("task/a", "canary/a")
    assert told(choice)[10] == ("left out", "guard canary/a>=0.9: it is 0.5")
    assert told(choice)[30] == ("left out", "guard canary/a>=0.9: it is NaN")
    assert told(choice)[40] == ("left out", "guard canary/a>=0.9: has no canary/a")


def test_scores_of_what_is_gone_are_listed_and_not_chosen() -> None:
    rows = [scored(5, a=1.0), scored(10, "other", a=0.99), scored(10, a=0.2), scored(20, a=0.1)]
    choice = choose(rows, there(10, 20, 30), "task/a", "max")
    assert choice.chosen == 10
    assert [(row.step, row.standing.value, row.reason) for row in choice.rows] == [
        (5, "gone", "not there any more"),
        (10, "gone", "of another checkpoint of this step, which is gone"),
        (10, "chosen", "the highest task/a of 2 eligible"),
        (20, "eligible", "number 2 of 2 eligible"),
        (30, "left out", "not scored yet"),
    ]


def test_a_name_with_two_values_leaves_its_checkpoint_out() -> None:
    odd = Measured(10, "d10", "save-10", {"task/a": 0.9}, {"task/a": (0.1, 0.9)})
    choice = choose([odd, scored(20, a=0.5)], there(10, 20), "task/a", "max")
    assert choice.chosen == 20
    assert told(choice)[10] == ("left out", "task/a has two values: 0.1 and 0.9")
    assert choice.rows[0].values == {}
    guarded = choose([odd, scored(20, b=0.5)], there(10, 20), "task/b", "max", [parse_guard("task/a>0")])
    assert guarded.chosen is None


def test_nothing_to_choose_says_why_for_each() -> None:
    choice = choose([scored(10, a=math.nan)], there(10, 20, 30), "task/a", "max")
    assert choice.chosen is None
    assert why_none(choice) == "its task/a is NaN (step 10); not scored yet (step 20, 30)"
    assert why_none(choose([], {}, "task/a", "max")) == "there is no complete checkpoint"
    many = choose([], there(*range(20)), "task/a", "max")
    assert why_none(many) == "not scored yet (step 0, 1, 2, 3, 4, 5, 6, 7, and 12 more)"


def test_of_several_with_one_step_each_counts() -> None:
    rows = [scored(6, "first", a=0.1), scored(6, "second", a=0.9), scored(6, "third", a=0.9), scored(6, "was", a=1)]
    choice = choose(rows, [(6, "first"), (6, "second"), (6, "third")], "task/a", "max")
    assert (choice.chosen, choice.chosen_digest) == (6, "second")
    assert {row.digest: row.reason for row in choice.rows} == {
        "first": "number 3 of 3 eligible",
        "second": "the highest task/a of 3 eligible",
        "third": "equal to another of this step",
        "was": "of another checkpoint of this step, which is gone",
    }


@pytest.mark.parametrize(
    ("guard", "value", "told"),
    [
        ("task/c>=1", 0.99999999, "guard task/c>=1: it is 0.99999999"),
        ("task/c>=0.99999999", 0.9, "guard task/c>=0.99999999: it is 0.9"),
        ("task/c>0.5", 1 / 3, "guard task/c>0.5: it is 0.333333"),
        ("task/c>0.5", math.nan, "guard task/c>0.5: it is NaN"),
        ("task/c<1", 1.0000000001, "guard task/c<1: it is 1"),
    ],
)
def test_a_guard_that_fails_shows_as_many_digits_as_that_takes(guard: str, value: float, told: str) -> None:
    choice = choose([scored(10, a=1, c=value)], there(10), "task/a", "max", [parse_guard(guard)])
    assert choice.rows[0].reason == told


@given(
    st.dictionaries(st.integers(0, 30), st.tuples(st.floats(), st.floats()), max_size=12),
    st.sets(st.integers(0, 30)),
    st.sampled_from(["max", "min"]),
    st.floats(allow_nan=False),
)
def test_the_chosen_is_there_passes_and_has_no_better(
    values: dict[int, tuple[float, float]], steps: set[int], mode: str, bound: float
) -> None:
    rows = [scored(step, a=a, canary_b=b) for step, (a, b) in values.items()]
    guard = Guard("canary/b", ">=", bound)
    choice = choose(rows, there(*steps), "task/a", mode, [guard])  # type: ignore[arg-type]
    good = {step: a for step, (a, b) in values.items() if step in steps and math.isfinite(a) and b >= bound}
    assert all(row.reason for row in choice.rows)
    assert {row.step for row in choice.rows if row.standing is not Standing.GONE} == steps
    if not good:
        assert choice.chosen is None
        return
    best = max(good.values()) if mode == "max" else min(good.values())
    assert choice.chosen == min(step for step, value in good.items() if value == best)


def test_what_is_not_complete_is_not_gone() -> None:
    rows = [scored(3, a=0.9), scored(4, a=0.9)]
    choice = choose(rows, there(2), "task/a", "max", (), [3])
    assert [(row.step, row.standing.value, row.reason) for row in choice.rows] == [
        (2, "left out", "not scored yet"),
        (3, "gone", "not complete"),
        (4, "gone", "not there any more"),
    ]
