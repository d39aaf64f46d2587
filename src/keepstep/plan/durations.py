"""Lengths of time as people write and read them."""

import math
import re

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(min|[smhd])")


class DurationError(ValueError):
    """A text that is no length of time."""


def parse_duration(text: str) -> float:
    """Seconds of a text such as "6h", "90 min", "1d12h" or "45s".

    Raises:
        DurationError: it is none, or it is 0.
    """
    parts = list(_PART.finditer(text.strip().lower()))
    rest = _PART.sub("", text.strip().lower()).strip()
    seconds = sum(float(part[1]) * _UNITS[part[2]] for part in parts)
    if rest or not parts or not 0 < seconds < math.inf:
        raise DurationError(f"{text!r} is no length of time; write 45s, 90m, 6h, 1d or 1d12h")
    return seconds


def spoken(seconds: float) -> str:
    """Seconds as text, in a unit that fits: "0.24 s", "12 s", "14.5 min", "6.2 h", "3.1 days"."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h" if seconds < 2 * 86400 else f"{seconds / 86400:.3g} days"
