"""Rows of a tracker as series that do not grow without bound."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.plan.report import logged
from keepstep.plan.report.logged import Logged
from keepstep.plan.report.series import series_of

PAIRS = st.lists(st.tuples(st.integers(0, 50), st.floats(width=16)), max_size=60)


@given(PAIRS)
@settings(deadline=None)
def test_a_series_is_the_same_row_by_row(pairs: list[tuple[int, float]]) -> None:
    found = Logged({"step": step, "loss": value} for step, value in pairs)
    assert found.series() == ((series_of("loss", pairs),) if pairs else ())
    assert (found.rows, found.step) == (len(pairs), max((step for step, _ in pairs), default=None))


def test_what_is_held_is_bounded() -> None:
    count = 3 * logged._MOST_HELD
    values = {step: math.sin(step) for step in range(count)} | {7: 9.0, 40_001: -9.0, 50: math.nan, 51: math.inf}
    found = Logged({"step": step, "loss": value} for step, value in values.items())
    assert len(found._found["loss"]._values) <= logged._MOST_HELD
    (series,) = found.series()
    assert (series.count, series.not_finite, series.first_not_finite) == (count, 2, 50)
    shown = [point.value for point in series.points if point.value is not None]
    assert (min(shown), max(shown)) == (-9.0, 9.0)
    assert series.last == values[count - 1]
