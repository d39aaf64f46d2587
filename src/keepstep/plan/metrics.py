"""Metrics of checkpoints: which one a name means, whether its value can be compared, and which is better."""

import math
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

from keepstep.errors import ConfigError
from keepstep.plan.scores import Measured

Mode = Literal["max", "min"]
Key = TypeVar("Key", int, tuple[int, str])


def names_in(measured: Iterable[Measured]) -> dict[str, int]:
    """The full names of all metrics, and how many checkpoints have each."""
    found: dict[str, int] = {}
    for one in measured:
        for name in one.metrics:
            found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))


def full_name(name: str, known: Iterable[str]) -> str:
    """The metric that a name means. A name without its set is taken where just one set has it.

    Args:
        name: `<set>/<metric>`, or `<metric>`.
        known: full names.

    Raises:
        ConfigError: several sets have it, or it names no set and none has it.
    """
    names = sorted(set(known))
    found = [one for one in names if one == name] or [one for one in names if one.partition("/")[2] == name]
    if len(found) > 1:
        raise ConfigError(f"{name} may be any of {', '.join(found)}; give one of these")
    if not found and "/" not in name:
        raise ConfigError(f"no checkpoint has a metric {name}; there are: {', '.join(names) or 'none at all'}")
    return found[0] if found else name


def obstacle(measured: Measured | None, name: str) -> str:
    """Why a checkpoint cannot be compared by a metric; empty where it can.

    NaN and infinities are what a scorer gives that went wrong: they are worse than any number, either way.
    """
    if measured is None:
        return "not scored yet"
    if name in measured.doubled:
        return f"{name} has two values: {' and '.join(map(shown, measured.doubled[name]))}"
    if name not in measured.metrics:
        told = measured.failed.get(name.partition("/")[0])
        return f"has no {name}" if told is None else f"has no {name}: scoring failed ({told or 'nobody knows why'})"
    value = measured.metrics[name]
    return "" if math.isfinite(value) else f"its {name} is {shown(value)}"


def best_first(values: Mapping[Key, float], mode: Mode) -> tuple[Key, ...]:
    """Checkpoints, by their steps or what begins with those, by their values, the best first; of equal ones the
    earlier: it took less training to get there, and the choice does not change before something better comes."""
    sign = -1.0 if mode == "max" else 1.0
    return tuple(sorted(values, key=lambda key: (sign * values[key], key)))


def shown(value: float) -> str:
    """A value in a table or a reason."""
    return "NaN" if math.isnan(value) else f"{value:.6g}"
