"""What lines of saves.jsonl tell, also those of a clock that was set back, of older versions, and of nobody."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.advice import Costs, advise
from keepstep.plan.run_history import Failures, Measured, failures_of, measured_of


def saved(step: int, attempt: int = 1, mode: str = "sync", **more: Any) -> dict[str, Any]:
    return {"step": step, "attempt": attempt, "outcome": "saved", "mode": mode, **more}


def started(step: int, attempt: int, seconds: float | None = 20.0) -> dict[str, Any]:
    return {"step": step, "attempt": attempt, "outcome": "started", "seconds": seconds, "world_size": 1}


def test_steps_and_saves_by_the_clock_of_the_job() -> None:
    rows = [saved(n * 10, seconds=3.0, lost_seconds=4.0, steps=10, steps_seconds=20.0, time=-n) for n in (1, 2, 3)]
    assert measured_of(rows) == Measured(3, 2.0, 4.0, 0.0, 10)


def test_what_the_writing_beside_a_job_slows_it_down_is_a_cost_of_the_save() -> None:
    """A step takes 1 second, and 1.5 while a checkpoint is written; the job stands still for half a second."""
    busy = {"busy_steps": 4, "busy_seconds": 6.0}
    rows = [saved(10, mode="async", seconds=6.5, lost_seconds=0.5, steps=10, steps_seconds=10.0)]
    rows += [
        saved(n * 10, mode="async", seconds=6.5, lost_seconds=0.5, steps=10, steps_seconds=12.0, **busy) for n in (2, 3)
    ]
    assert measured_of(rows) == Measured(3, 1.0, 2.5, 6.5, 10)
    always = [saved(n, mode="async", lost_seconds=0.5, steps=4, steps_seconds=6.0, **busy) for n in (4, 8)]
    assert measured_of(always).step_seconds == 1.5


def test_other_modes_and_saves_of_long_ago_do_not_count() -> None:
    old = [saved(n, seconds=99.0, lost_seconds=99.0, steps=1, steps_seconds=50.0) for n in range(1, 30)]
    new = [saved(100 + n, mode="async", lost_seconds=0.1, steps=1, steps_seconds=1.0) for n in (1, 2)]
    assert measured_of([*old, *new]) == Measured(2, 1.0, 0.1, 0.0, 1)


@pytest.mark.parametrize("jump", [-1e6, 0.0, 1e6])
def test_lines_of_an_older_version_where_the_clock_was_set(jump: float) -> None:
    times = [100.0, 124.0, 148.0, 172.0 + jump, 196.0 + jump, 220.0 + jump, 244.0 + jump]
    rows = [saved(n * 10, seconds=4.0, time=at) for n, at in enumerate(times)]
    assert measured_of(rows) == Measured(7, 2.0, 4.0, 0.0, 10)
    assert failures_of(rows).running_seconds == 28.0


def test_a_start_after_no_end_is_a_failure() -> None:
    work = {"lost_seconds": 10.0, "steps": 10, "steps_seconds": 100.0}
    rows = [
        started(0, 1),
        saved(10, **work),
        started(10, 2),  # the first was killed
        {"step": 10, "attempt": 2, "outcome": "mirrored", "seconds": 500.0},
        saved(20, **work),
        {"step": 25, "attempt": 2, "outcome": "stopped", "steps": 5, "steps_seconds": 50.0},
        started(20, 3, 40.0),
        started(20, 4, None),  # the third died before it saved
        {"step": 30, "attempt": 4, "outcome": "finished", "steps": 10, "steps_seconds": 100.0},
    ]
    assert failures_of(rows) == Failures(4, 2, 450.0, 20.0)
    assert failures_of(rows).mtbf_seconds == 225.0
    assert failures_of(rows, has_failed=True).failures == 2
    assert failures_of(rows[:5]).failures == 1
    assert failures_of(rows[:5], has_failed=True).failures == 2
    assert failures_of([]).mtbf_seconds is None


def test_a_machine_that_slept_or_a_file_system_that_hung_says_nothing_of_steps() -> None:
    """Asleep for six hours in one of four saves, and also beside a write."""
    rows = [saved(100 * n, lost_seconds=5.0, steps=100, steps_seconds=100.0 + 21600.0 * (n == 2)) for n in range(1, 5)]
    assert measured_of(rows).step_seconds == 1.0
    assert measured_of(rows[:2]).step_seconds == 1.0
    uneven = [saved(n, lost_seconds=5.0, steps=steps, steps_seconds=1.5 * steps) for n, steps in ((1, 10), (2, 640))]
    assert measured_of([*uneven, *rows[2:]]).step_seconds == pytest.approx(1175 / 850)
    beside = [
        saved(
            n, mode="async", lost_seconds=0.5, steps=10, steps_seconds=14.0 + late, busy_steps=4, busy_seconds=8 + late
        )
        for n, late in ((1, 0.0), (2, 9e4), (3, 0.0))
    ]
    assert measured_of(beside).save_seconds == 0.5 + 4.0


def test_waiting_for_the_save_before_is_no_cost_of_a_save() -> None:
    rows = [saved(n, mode="async", lost_seconds=90.5, waited_seconds=90.0, steps=10, steps_seconds=1.0) for n in (1, 2)]
    assert measured_of(rows).save_seconds == 0.5
    assert failures_of(rows).running_seconds == 183.0


def period(to: Any, attempt: int = 1) -> dict[str, Any]:
    return {"outcome": "period", "attempt": attempt, "to": to}


@pytest.mark.parametrize(
    ("rows", "steps"),
    [
        ([started(0, 1), saved(10, steps=9)], 10),
        ([started(50, 2), saved(60, 2, steps=9), saved(70, 2, steps=10), saved(75, 2, steps=5)], 10),
        ([saved(10), saved(20), period(40), saved(60)], 40),
        ([saved(10), saved(20), period(40), saved(60), saved(100), saved(105)], 40),
        ([saved(10), saved(20), period(40), saved(30), saved(40), saved(50)], 10),  # its steps have become slow
        ([saved(20), period(40), saved(60), started(60, 2), saved(160, 2), saved(260, 2)], 100),
        ([saved(20), period(40), saved(60), saved(100), started(100, 2)], 40),
        ([saved(20), period(10**400), saved(60)], 40),
        ([started(0, 1)], None),
        ([], None),
    ],
)
def test_the_present_period_is_that_of_the_newest_attempt_that_tells(rows: list[dict[str, Any]], steps: int) -> None:
    assert measured_of(rows).period_steps == steps


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.integers(-5, 50),
    st.just(10**400),
    st.just(1e-310),
    st.text(max_size=3),
    st.lists(st.none()),
)
NAMES = (
    "step",
    "attempt",
    "time",
    "seconds",
    "lost_seconds",
    "steps",
    "steps_seconds",
    "busy_steps",
    "busy_seconds",
    "to",
    "waited_seconds",
)
OUTCOMES = st.sampled_from(
    ["saved", "started", "stopped", "finished", "period", "mirrored", "of a later version", 5, None]
)
ROWS = st.fixed_dictionaries(
    {"outcome": OUTCOMES}, optional={"mode": st.sampled_from(["sync", "async", 1]), **dict.fromkeys(NAMES, VALUES)}
)


@given(st.lists(ROWS, max_size=12))
def test_no_line_breaks_it(rows: list[dict[str, Any]]) -> None:
    found, ends = measured_of(rows), failures_of(rows)
    for seconds in (found.step_seconds, found.save_seconds, found.commit_delay_seconds, ends.running_seconds):
        assert seconds is None or 0 <= seconds < float("inf")
    assert 0 <= ends.failures <= ends.attempts
    assert found.period_steps is None or 0 < found.period_steps <= 10**12
    if found.step_seconds and found.save_seconds is not None:
        costs = Costs(found.step_seconds, found.save_seconds, found.commit_delay_seconds, 0.0, ends.mtbf_seconds)
        assert advise(costs).period_steps >= 1
