import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.config.training import LRSchedulerConfig, PhaseConfig
from keepstep.plan.schedule import ScheduleError, factor, is_save_due, segments


@pytest.mark.parametrize(
    ("period", "total", "expected"),
    [
        (5, 12, [5, 10, 12]),
        (5, 10, [5, 10]),
        (100, 12, [12]),
        ("last_step", 12, [12]),
        ("disable", 12, []),
        (5, None, [5, 10, 15, 20]),
        ("last_step", None, []),
    ],
)
def test_when_a_job_saves(period: object, total: int | None, expected: list[int]) -> None:
    last = total or 20
    assert [step for step in range(last + 1) if is_save_due(step, total, period)] == expected  # type: ignore[arg-type]


def schedule(total: int, *phases: dict[str, object], initial: float | None = None) -> list[float]:
    placed = segments(LRSchedulerConfig.model_validate({"phases": phases, "initial": initial}), total)
    return [factor(placed, step) for step in range(total + 1)]


def test_warm_up_and_decay() -> None:
    rates = schedule(20, {"percent": 10, "to": 1.0}, {"rest": True, "to": 0.0})
    assert rates[:4] == [0.0, 0.5, 1.0, 1.0 - 1 / 18]
    assert rates[20] == 0.0


def test_percent_phases_move_with_the_total_and_steps_do_not() -> None:
    phases = ({"steps": 4, "to": 1.0}, {"percent": 50, "to": 1.0}, {"rest": True, "to": 0.0, "curve": "cosine"})
    short, long = schedule(40, *phases), schedule(60, *phases)
    assert short[4] == long[4] == 1.0
    assert [s for s in range(41) if short[s] == 1.0] == list(range(4, 25))
    assert [s for s in range(61) if long[s] == 1.0] == list(range(4, 35))


def test_curves() -> None:
    assert schedule(4, {"rest": True, "to": 0.0, "curve": "cosine"}, initial=1.0)[2] == pytest.approx(0.5)
    assert schedule(4, {"rest": True, "to": 0.25, "curve": "exponential"}, initial=1.0)[2] == pytest.approx(0.5)
    assert schedule(4, {"rest": True, "to": 0.25, "curve": "constant"}, initial=1.0) == [0.25] * 5


def test_a_curve_that_only_goes_down_begins_at_the_base_rate() -> None:
    assert schedule(4, {"rest": True, "to": 0.0}) == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert schedule(4, {"rest": True, "to": 0.5})[0] == 1.0
    assert schedule(4, {"rest": True, "to": 1.0})[0] == 0.0


def test_without_phases_the_rate_is_constant() -> None:
    assert schedule(3) == [1.0] * 4


def test_phases_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ScheduleError, match="take 15 steps, total_steps is 10"):
        schedule(10, {"steps": 15, "to": 1.0})


PHASE = st.builds(
    PhaseConfig,
    percent=st.floats(0, 30),
    to=st.floats(0.001, 2),
    curve=st.sampled_from(["linear", "cosine", "exponential", "constant"]),
)


@given(st.lists(PHASE, max_size=3), st.integers(1, 500), st.floats(0, 2))
def test_the_factor_is_never_negative_or_nan_and_phases_leave_no_gap(
    phases: list[PhaseConfig], total: int, initial: float
) -> None:
    placed = segments(LRSchedulerConfig(phases=tuple(phases), initial=initial), total)
    assert all(a.end == b.begin for a, b in itertools.pairwise(placed))
    for step in range(0, total + 2, max(1, total // 50)):
        value = factor(placed, step)
        assert value >= 0
        assert math.isfinite(value)
