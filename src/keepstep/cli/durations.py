"""Durations as people write them."""

import math
import re

from keepstep.errors import ConfigError

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)")
_SECONDS = {"m": 60, "min": 60, "h": 3600, "d": 86400}


def parse_seconds(text: str, option: str) -> float:
    """Seconds of `90min`, `24h` or `7d`.

    Raises:
        ConfigError: it is none, or nothing at all.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    unit = _SECONDS.get(match[2]) if match else None
    seconds = float(match[1]) * unit if match and unit else 0.0
    if not 0 < seconds < math.inf:
        raise ConfigError(f"{option}: {text!r} is no duration; write 90min, 24h or 7d")
    return seconds
