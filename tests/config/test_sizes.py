"""Sizes as people write them."""

import pytest

from keepstep.config.sizes import parse_size
from keepstep.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1000", 1000),
        ("50GB", 50 * 10**9),
        ("50 gb", 50 * 10**9),
        ("1.5T", 15 * 10**11),
        ("2MiB", 2 * 2**20),
        ("3 kB", 3000),
        ("7b", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e9", "5 hours", "1iB", "1.GB"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no size"):
        parse_size(text)
