"""Scores over steps, and which checkpoint one would take by them."""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from keepstep.errors import ConfigError
from keepstep.plan.report.series import MOST_POINTS, Series, series_of
from keepstep.plan.scores import DEFAULT_SET, Measured

_LESS_IS_BETTER = re.compile(
    r"(^|[/_.-])(loss|nll|ppl|perplexity|err|error|wer|cer|mse|rmse|mae|bpb|bpc)($|[/_.-])", re.I
)
MODES = ("max", "min")


@dataclass(frozen=True)
class Chosen:
    """The checkpoint with the best value. `present`: whether it is in the folder, and complete."""

    step: int
    value: float
    present: bool


@dataclass(frozen=True)
class Scoreboard:
    """All scores.

    Attributes:
        metric, mode: what decides ("max" or "min"); `asked`: whether somebody said so, or it was taken as the first.
        chosen: the best by that; None where nothing has a finite value.
        why_none: why nothing was chosen.
        series: each metric over steps.
        rows: of every scored checkpoint, by step.
        problems: what is odd: two metrics with one name, values that are no numbers, checkpoints without the metric.
    """

    metric: str
    mode: str
    asked: bool
    chosen: Chosen | None
    why_none: str
    series: tuple[Series, ...]
    rows: tuple[Measured, ...]
    problems: tuple[str, ...]


def scoreboard_of(
    rows: Sequence[Measured],
    present: Collection[int],
    metric: str | None = None,
    mode: str | None = None,
    most: int = MOST_POINTS,
) -> Scoreboard:
    """Put scores together.

    Args:
        rows: by step.
        present: steps whose checkpoints are in the folder and complete.
        metric: full name of the one that decides; by default the first of the set "task", else the first of all.
        mode: "max" or "min"; by default "min" for names like loss, perplexity or error.
        most: points of each series.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.metrics))
    decides = metric or default_metric(names)
    direction = mode or default_mode(decides)
    chosen = choose(rows, present, decides, direction)
    why = "" if chosen else _why_none(rows, decides, names)
    series = [series_of(name, _pairs(rows, name), most) for name in names]
    return Scoreboard(
        decides, direction, metric is not None, chosen, why, tuple(series), tuple(rows), _problems(rows, decides)
    )


def default_metric(names: Sequence[str]) -> str:
    """The metric that decides where nobody says; empty without metrics."""
    return next((name for name in names if name.startswith(f"{DEFAULT_SET}/")), names[0] if names else "")


def default_mode(metric: str) -> str:
    """Whether less of it is better, by its name."""
    return "min" if _LESS_IS_BETTER.search(metric) else "max"


def asked_mode(mode: str | None) -> str | None:
    """A mode that somebody has written. Raises ConfigError when it is none."""
    if mode is not None and mode not in MODES:
        raise ConfigError(f"--mode {mode!r} is not known; it is max (more is better) or min")
    return mode


def choose(rows: Sequence[Measured], present: Collection[int], metric: str, mode: str) -> Chosen | None:
    """The best by one metric, of equal ones the earliest. NaN, infinities and ambiguous values are never the best."""
    values = [
        (row.metrics[metric], row.step)
        for row in rows
        if metric in row.metrics and math.isfinite(row.metrics[metric]) and metric not in row.ambiguous
    ]
    if not values:
        return None
    value, step = min(values, key=lambda one: (one[0] if mode == "min" else -one[0], one[1]))
    return Chosen(step, value, step in present)


def _pairs(rows: Sequence[Measured], name: str) -> list[tuple[int, float]]:
    return [(row.step, row.metrics[name]) for row in rows if name in row.metrics]


def _why_none(rows: Sequence[Measured], metric: str, names: Sequence[str]) -> str:
    if not rows:
        return "no checkpoint was scored"
    if metric not in names:
        known = f"; there are {', '.join(names)}" if names else ""
        return f"no checkpoint has the metric {metric}{known}" if metric else "no score holds a metric"
    return f"no value of {metric} can be compared: they are NaN, infinite, or ambiguous"


def _problems(rows: Sequence[Measured], metric: str) -> tuple[str, ...]:
    found = []
    for row in rows:
        where = f"step {row.step:,}"
        found += [f"{where}: scoring on {name} failed: {why}" for name, why in row.failed.items()]
        found += [f"{where}: two sets give {name} with different values" for name in row.ambiguous]
        found += [f"{where}: {name} is not finite" for name, value in row.metrics.items() if not math.isfinite(value)]
        if row.metrics and metric and metric not in row.metrics:
            found.append(f"{where}: it has no {metric}")
    return tuple(found)
