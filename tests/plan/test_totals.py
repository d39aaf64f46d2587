"""The last step of a job, by its run record."""

import pytest

from keepstep.plan.totals import total_steps_of


@pytest.mark.parametrize(
    ("record", "total"),
    [
        ({"total_steps": 7}, 7),
        ({"total_steps": None, "config": {"trainer": {"total_steps": 9}}}, 9),
        ({"total_steps": 7, "config": {"trainer": {"total_steps": 9}}}, 7),
        ({}, None),
        ({"total_steps": True}, None),
        ({"total_steps": 0, "config": {"trainer": []}}, None),
        ({"total_steps": "7", "config": 3}, None),
    ],
)
def test_the_total(record: dict[str, object], total: int | None) -> None:
    assert total_steps_of(record) == total
