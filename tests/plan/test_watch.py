"""What a watcher does next."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.scores import FAILED, MARKED, RETRY, SCORED, Score
from keepstep.plan.watch import Retries, Scorable, plan_holds, plan_watch

RETRIES = Retries(most=3, pause=10.0)


def there(step: int, size: int = 10, *, marked: bool = False) -> Scorable:
    return Scorable(step, f"d{step}", f"save-{step}", size, marked)


def known(*rows: Score) -> Mapping[tuple[str, str], Score]:
    return {row.key: row for row in rows}


def row(step: int, outcome: str, time: float = 100.0, tries: int = 1, set: str = "task") -> Score:
    return Score(step, f"d{step}", set, outcome, time=time, tries=tries)


def due(steps: list[int], *rows: Score, now: float = 1000.0, **how: object) -> list[tuple[int, str]]:
    plan = plan_watch([there(step) for step in steps], ("task", "canary"), known(*rows), now, retries=RETRIES, **how)  # type: ignore[arg-type]
    return [(unit.checkpoint.step, unit.set) for unit in plan.due]


def test_the_newest_comes_first_on_all_sets_or_the_oldest() -> None:
    assert due([1, 3, 2]) == [(3, "task"), (3, "canary"), (2, "task"), (2, "canary"), (1, "task"), (1, "canary")]
    assert due([1, 3, 2], order="oldest")[0] == (1, "task")


@pytest.mark.parametrize("outcome", [SCORED, FAILED, MARKED])
def test_what_has_a_final_row_is_done(outcome: str) -> None:
    assert due([1], row(1, outcome), row(1, outcome, set="canary")) == []
    assert due([1], row(1, outcome)) == [(1, "canary")]
    # Another checkpoint of the same step is another one.
    assert due([1], Score(1, "other", "task", outcome))[0] == (1, "task")


def test_a_failure_waits_twice_as_long_each_time() -> None:
    waits = [
        plan_watch([there(1)], ("task",), known(row(1, RETRY, 100.0, tries)), 101.0, retries=RETRIES).wait_seconds
        for tries in (1, 2, 3)
    ]
    assert waits == [9.0, 19.0, 39.0]
    assert due([1], row(1, RETRY, 100.0), now=110.0)[0] == (1, "task")
    assert [RETRIES.outcome(tries) for tries in (1, 2, 3, 4)] == [RETRY, RETRY, FAILED, FAILED]


@given(st.floats(0.001, 1e9))
def test_a_clock_that_was_set_back_keeps_nothing_waiting(back: float) -> None:
    assert due([1], row(1, RETRY, 1e9 + back), now=1e9)[0] == (1, "task")


def test_a_pause_has_an_end() -> None:
    assert Retries(100, 30.0).pause_after(99) == 3600.0
    assert Retries(100, 9000.0).pause_after(99) == 9000.0


def test_marks_of_others_count_once_and_only_where_nothing_is_known() -> None:
    one = there(1, marked=True)
    plan = plan_watch([one], ("task",), {}, 0.0)
    assert ([unit.set for unit in plan.marked], plan.due) == (["task"], ())
    assert plan_watch([one], ("task",), {}, 0.0, respects_marks=False).due
    assert plan_watch([one], ("task",), known(row(1, RETRY)), 1e6).due
    # A scorer that leaves such a mark itself says nothing of the other sets.
    assert [unit.set for unit in plan_watch([one], ("task", "b"), known(row(1, SCORED)), 0.0).due] == ["b"]
    assert [unit.set for unit in plan_watch([one], ("task", "b"), known(row(1, MARKED)), 0.0).marked] == ["b"]
    assert plan_watch([one], ("task",), known(row(1, MARKED)), 0.0).is_done


def test_final_rows_can_be_reopened() -> None:
    failed = row(1, FAILED, tries=3)
    plan = plan_watch([there(1)], ("task",), known(failed), 0.0, reopened=[failed])
    assert [unit.tries for unit in plan.due] == [0]
    again = row(1, FAILED, time=200.0)
    assert plan_watch([there(1)], ("task",), known(again), 0.0, reopened=[failed]).is_done


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(0, 300))
def test_holds_stay_within_their_budget_and_nothing_that_fits_is_left_out(sizes: list[int], budget: int) -> None:
    unscored = [there(step, size) for step, size in enumerate(sizes)]
    held = plan_holds(unscored, budget)
    used = sum(one.size for one in held)
    assert used <= budget
    assert all(one.size > budget - used for one in unscored if one not in held)


def test_what_comes_first_is_held_first() -> None:
    assert [one.step for one in plan_holds([there(3, 6), there(2, 6), there(1, 4)], 10)] == [3, 1]
