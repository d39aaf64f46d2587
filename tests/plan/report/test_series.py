"""Series over steps: what stays when they are thinned."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.report.logged import Logged
from keepstep.plan.report.series import Point, Series, series_of, thin
from keepstep.plan.report.sparkline import sparkline

VALUES = st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=400)


@given(VALUES, st.integers(5, 60))
def test_ends_extremes_and_gaps_stay(values: list[float | None], most: int) -> None:
    points = [Point(step, value) for step, value in enumerate(values)]
    kept = thin(points, most)
    assert len(kept) <= max(most, 0)
    assert [point.step for point in kept] == sorted({point.step for point in kept})
    assert set(kept) <= set(points)
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
    known = [value for value in values if value is not None]
    if known:
        shown = [point.value for point in kept if point.value is not None]
        assert (min(shown), max(shown)) == (min(known), max(known))
    if None in values:
        assert None in [point.value for point in kept]


def test_a_short_series_stays_whole() -> None:
    points = tuple(Point(step, 1.0) for step in range(5))
    assert thin(points, 5) == points


def test_of_several_values_at_one_step_the_last_counts() -> None:
    assert series_of("loss", [(2, 5.0), (1, 3.0), (2, 4.0)]).points == (Point(1, 3.0), Point(2, 4.0))


def test_values_that_are_not_finite_are_gaps_and_counted() -> None:
    found = series_of("loss", [(1, 1.0), (2, math.nan), (3, math.inf), (4, 2.0)])
    assert [point.value for point in found.points] == [1.0, None, None, 2.0]
    assert (found.not_finite, found.first_not_finite, found.count, found.last) == (2, 2, 4, 2.0)


@pytest.mark.parametrize("value", [None, "NaN", "Infinity", "-Infinity", math.nan, 10**400, -(10**400)])
def test_words_and_null_for_numbers_that_json_has_not(value: object) -> None:
    (found,) = Logged([{"step": 1, "loss": value}]).series()
    assert (found.points, found.not_finite) == ((Point(1, None),), 1)


def test_rows_that_tell_nothing_are_passed_over() -> None:
    rows = [{"loss": 1.0}, {"step": "1", "loss": 1}, {"step": -1, "loss": 1}, {"step": True, "loss": 1}, {"step": 1.5}]
    odd = [{"step": 3, "loss": "much", "note": [1], "flag": True, "lr": 0.5}]
    assert [one.name for one in Logged([*rows, *odd]).series()] == ["lr"]


def test_a_sparkline() -> None:
    points = tuple(Point(step, value) for step, value in enumerate([0.0, 1.0, None, 7.0]))
    assert sparkline(Series("x", points, 4), 10) == "▁▂ █"
    assert sparkline(Series("x", points, 4), 2) == "▁█"
    assert sparkline(Series("x", (Point(1, 5.0), Point(2, 5.0)), 2), 10) == "▁▁"
    assert sparkline(Series("x", (Point(1, None),), 1), 10) == " "
    assert sparkline(Series("x", (), 0), 10) == ""


@given(VALUES, st.integers(0, 80))
def test_a_sparkline_of_anything(values: list[float | None], width: int) -> None:
    points = tuple(Point(step, value) for step, value in enumerate(values))
    assert len(sparkline(Series("x", points, len(points)), width)) == min(width, len(points))
