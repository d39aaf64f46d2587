"""Bounds that scores must keep: `canary/accuracy>=0.9`."""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from keepstep.errors import ConfigError

_GUARD = re.compile(r"\s*(?P<metric>[^<>=!]*[^<>=!\s])\s*(?P<operator>>=|<=|==|!=|>|<)\s*(?P<number>[^<>=!\s]+)\s*")
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class Guard:
    """A bound that a metric must keep, or the checkpoint is not chosen. NaN keeps none."""

    metric: str
    operator: str
    number: float

    def __str__(self) -> str:
        short = f"{self.number:g}"
        return f"{self.metric}{self.operator}{short if float(short) == self.number else repr(self.number)}"

    def admits(self, value: float) -> bool:
        """Whether a value keeps the bound."""
        return not math.isnan(value) and _OPERATORS[self.operator](value, self.number)


def parse_guard(text: str) -> Guard:
    """A guard from text: `canary/accuracy>=0.9`.

    Raises:
        ConfigError: it is none.
    """
    match = _GUARD.fullmatch(text)
    try:
        # `float` takes 1_0 as well, and digits of any script.
        is_plain = match is not None and match["number"].isascii() and "_" not in match["number"]
        number = float(match["number"]) if match is not None and is_plain else math.nan
    except ValueError:
        number = math.nan
    if match is None or math.isnan(number):
        raise ConfigError(
            f"guard {text!r}: must be a metric, one of {' '.join(_OPERATORS)}, and a number: canary/accuracy>=0.9"
        )
    return Guard(match["metric"], match["operator"], number)
