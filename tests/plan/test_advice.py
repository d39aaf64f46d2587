"""Against a simulation that shares nothing with the formula, and by hand."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keepstep.plan.advice import (
    DAY_SECONDS,
    Costs,
    advise,
    bound_steps,
    daly_estimate,
    expected_loss,
    next_period,
    optimum_seconds,
    optimum_steps,
)
from tests.rig.crashes import gaps, lost_share, play

HOUR = 3600.0


def candidates(most: int) -> list[int]:
    """Periods to try: all small ones, and then a percent apart."""
    spread = {round(x) for x in np.geomspace(1, max(1, most), 160)}
    return sorted({n for n in {*range(1, 40), *spread} if n <= most})


@settings(max_examples=40, deadline=None)
@given(
    step=st.floats(0.05, 120),
    save=st.floats(0.01, 900),
    mtbf=st.floats(0.2 * HOUR, 500 * HOUR),
    restart=st.floats(0, 900),
    delay=st.floats(0, 700),
    minutes=st.floats(1, 10_000),
)
@example(step=1.0, save=30.0, mtbf=6 * HOUR, restart=120.0, delay=0.0, minutes=15.0)
@example(step=1.0, save=30.0, mtbf=6 * HOUR, restart=120.0, delay=0.0, minutes=10_000.0)
@example(step=100.0, save=900.0, mtbf=0.2 * HOUR, restart=900.0, delay=300.0, minutes=10_000.0)
@example(step=1.0, save=0.05, mtbf=6 * HOUR, restart=60.0, delay=120.0, minutes=15.0)
@example(step=100.0, save=0.05, mtbf=2 * HOUR, restart=60.0, delay=110.0, minutes=1.0)
def test_the_advised_loss_is_within_two_percent_of_the_best_of_all_periods(
    step: float, save: float, mtbf: float, restart: float, delay: float, minutes: float
) -> None:
    costs = Costs(step, save, delay, restart, mtbf)
    advice, crashes = advise(costs, minutes), gaps(mtbf)

    def loss(steps: int) -> float:
        return lost_share(crashes, steps * step, save, restart, delay)

    most = min(bound_steps(costs, minutes), math.ceil(4 * mtbf / step))
    assert advice.period_steps <= bound_steps(costs, minutes)
    # Most of the loss may be the same with every period: what can be chosen is what counts.
    unavoidable = 1 - math.exp(-(restart + delay) / mtbf)
    best = min(loss(steps) for steps in candidates(most))
    assert loss(advice.period_steps) <= 1.02 * best
    assert loss(advice.period_steps) - unavoidable <= 1.02 * (best - unavoidable) + 0.002


@pytest.mark.parametrize(
    ("work", "save", "restart", "delay"),
    [
        (600.0, 30.0, 120.0, 0.0),
        (5000.0, 900.0, 0.0, 0.0),
        (60.0, 1.0, 7200.0, 0.0),
        (600.0, 2.0, 60.0, 500.0),
        (100.0, 2.0, 60.0, 500.0),
    ],
)
def test_the_expected_loss_is_what_the_simulation_counts(
    work: float, save: float, restart: float, delay: float
) -> None:
    crashes = gaps(6 * HOUR)
    expected = expected_loss(Costs(1.0, save, delay, restart, 6 * HOUR), round(work)).total / DAY_SECONDS
    assert expected == pytest.approx(lost_share(crashes, work, save, restart, delay), abs=0.002)
    few = np.random.default_rng(1).permutation(crashes)[:2000]
    assert lost_share(few, work, save, restart, delay) == pytest.approx(play(few, work, save, restart, delay), abs=1e-3)


@given(st.floats(0.01, 60), st.floats(0, 60), st.floats(0, 2000), st.none() | st.floats(3000, 1e6), st.floats(0.5, 600))
def test_no_advised_save_waits_longer_for_the_one_before_than_a_step_takes(
    step: float, save: float, delay: float, mtbf: float | None, minutes: float
) -> None:
    advice = advise(Costs(step, save, delay, 0.0, mtbf), minutes)
    assert (advice.period_steps + 1) * step > delay * (1 - 1e-6)
    if advice.is_bounded:
        assert advice.period_steps * step >= delay * (1 - 1e-6)


def test_the_time_of_a_write_is_named_where_it_decides() -> None:
    seldom, often = Costs(1.0, 0.1, 1000.0), Costs(1.0, 0.1, 1000.0, 0.0, 3 * HOUR)
    assert (advise(seldom).period_steps, advise(often, 600).period_steps) == (1000, 1000)
    assert "which cannot be: writing a checkpoint takes 16.7 min" in advise(seldom).reasons[1]
    assert "writing takes 16.7 min: sooner, a save waits for the one before" in advise(often, 600).reasons[0]
    assert expected_loss(seldom, 100).total / DAY_SECONDS == pytest.approx(0.9, rel=1e-3)


def test_a_period_that_makes_saves_wait_is_left_at_once_and_does_not_wander() -> None:
    assert next_period(10, 1000, 1000) == next_period(999, 1000, 1000) == 1100
    assert {next_period(1100, least, least) for least in range(881, 1101)} == {1100}
    assert [next_period(steps, 1000) for steps in (10, 900, 1200, 2000)] == [40, 900, 1200, 1000]


def test_one_step_is_no_steps() -> None:
    reasons = [*advise(Costs(10.0, 0.0, 0.0, 0.0, 60.0)).reasons, *advise(Costs(600.0, 0.0)).reasons]
    assert "1 step (10 s) costs least" in reasons[0]
    assert "1 step (10 min) and a save" in reasons[2]


def test_youngs_and_dalys_estimates_are_near_where_saves_are_cheap() -> None:
    exact = optimum_seconds(10.0, 24 * HOUR)
    assert exact == pytest.approx(math.sqrt(2 * 10.0 * 24 * HOUR), rel=0.02)
    assert exact == pytest.approx(daly_estimate(10.0, 24 * HOUR), rel=1e-4)


@given(st.floats(0, 1e7), st.floats(1, 1e9))
def test_the_optimum_is_where_the_derivative_is_zero(save: float, mtbf: float) -> None:
    x, delay = optimum_seconds(save, mtbf) / mtbf, save / mtbf
    assert 0 <= x <= 1
    assert x + math.expm1(-(x + delay)) == pytest.approx(0, abs=1e-9)


@given(st.floats(1e-4, 1e5), st.floats(0, 1e5), st.floats(1, 1e9), st.floats(0, 1e5), st.floats(0, 1e4))
def test_what_a_day_loses_adds_up(step: float, save: float, mtbf: float, restart: float, delay: float) -> None:
    costs = Costs(step, save, delay, restart, mtbf)
    for steps in {1, 7, advise(costs).period_steps, optimum_steps(costs)}:
        assert steps is not None
        loss = expected_loss(costs, steps)
        assert -1e-6 * DAY_SECONDS <= loss.total <= DAY_SECONDS
        assert min(loss.saves, loss.recomputed, loss.restarts) >= 0
        assert loss.saves + loss.recomputed + loss.restarts >= loss.total * (1 - 1e-9) - 1e-6


@given(st.floats(0.01, 2000), st.floats(0, 2000), st.floats(0, 100), st.floats(0.5, 600))
def test_a_crash_costs_no_more_than_the_bound_where_that_can_be(
    step: float, save: float, delay: float, minutes: float
) -> None:
    advice = advise(Costs(step, save, delay), minutes)
    assert advice.is_bounded
    cost = advice.period_steps * step + save + delay
    longest = max(save, delay) + save + delay + step
    if longest <= minutes * 60:
        assert cost <= minutes * 60 * (1 + 1e-6)
        assert cost + step > minutes * 60 * (1 - 1e-6)
    elif cost > minutes * 60 * (1 + 1e-6):
        why = ("in any case", "half of the time", "which cannot be")
        assert any(one in reason for reason in advice.reasons for one in why)


def test_the_reason_says_what_decided() -> None:
    costs = Costs(1.0, 30.0, 0.0, 120.0, 100 * HOUR)
    free, bound = advise(costs, 10_000), advise(costs, 15)
    assert (free.is_bounded, free.optimum_steps) == (False, free.period_steps)
    assert "cost least where a save costs 30 s and a failure comes every 4.17 days" in free.reasons[0]
    assert (bound.is_bounded, bound.period_steps) == (True, 870)
    assert f"without a bound {free.period_steps} steps" in bound.reasons[0]
    assert "a crash is to cost 15 min at most: 870 steps (14.5 min) and a save" in bound.reasons[1]
    assert advise(Costs(1.0, 30.0)).reasons[0] == "no failure rate is known"
    assert "a step takes 33.3 min" in advise(Costs(2000.0, 1.0)).reasons[1]
    assert advise(Costs(1.0, 1200.0)).period_steps == 1200
    assert expected_loss(Costs(1.0, 30.0), 270).total == DAY_SECONDS / 10
