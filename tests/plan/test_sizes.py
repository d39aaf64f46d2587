"""Sizes in words."""

import pytest

from keepstep.plan.sizes import readable_size


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (2e12, "2.0 TB"), (5e18, "5000.0 PB")],
)
def test_the_largest_unit_that_fits(size: float, text: str) -> None:
    assert readable_size(size) == text
