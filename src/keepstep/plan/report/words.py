"""Numbers as people read them."""

import math
from datetime import UTC, datetime

from keepstep.plan.sizes import readable_size

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
UNKNOWN = "–"


def size_text(size: float | None) -> str:
    """Bytes in a readable unit."""
    return UNKNOWN if size is None else readable_size(size)


def seconds_text(seconds: float | None) -> str:
    """A duration, in its two largest units."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def number_text(value: float | None) -> str:
    """A value with four digits that count."""
    if value is None:
        return UNKNOWN
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.4g}"


def step_text(step: int | None) -> str:
    """A step with separators."""
    return UNKNOWN if step is None else f"{step:,}"


def time_text(time: float | None) -> str:
    """Seconds since the epoch as date and time, in UTC."""
    if time is None:
        return UNKNOWN
    try:
        return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return UNKNOWN


def counted(count: int, one: str, many: str = "") -> str:
    """A count and its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
