"""Scores over steps, and which checkpoint one would take by them."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from keepstep.config.bounds import Guard
from keepstep.plan.choice import Choice, ChoiceRow, Standing, choose, why_none
from keepstep.plan.metrics import Mode, full_name
from keepstep.plan.report.decider import Decider
from keepstep.plan.report.series import MOST_POINTS, Series, series_of
from keepstep.plan.scores import DEFAULT_SET, Measured

_LESS_IS_BETTER = re.compile(
    r"(^|[/_.-])(loss|nll|ppl|perplexity|err|error|wer|cer|mse|rmse|mae|bits|nats|bpb|bpc|bpw)($|[/_.-])", re.I
)


@dataclass(frozen=True)
class Scoreboard:
    """All scores.

    Attributes:
        choice: as `keepstep best` makes it; None where no score holds a metric.
        asked: whether somebody said what decides, or it was taken as the first.
        source: who said so, where it was not asked for: the run's configuration, say.
        why_none: why nothing was chosen.
        series: each metric over steps; of several checkpoints of one step that of the one that is there.
        rows: of every scored checkpoint, by step.
        problems: what is odd: two metrics with one name, values that are no numbers, checkpoints without the metric.
    """

    choice: Choice | None
    asked: bool
    why_none: str
    series: tuple[Series, ...]
    rows: tuple[Measured, ...]
    problems: tuple[str, ...]
    source: str = ""

    @property
    def metric(self) -> str:
        """What decides, by its full name; empty where there is nothing to decide by."""
        return self.choice.metric if self.choice else ""

    @property
    def chosen(self) -> ChoiceRow | None:
        """The checkpoint to take."""
        rows = self.choice.rows if self.choice else ()
        return next((row for row in rows if row.standing is Standing.CHOSEN), None)

    @property
    def value(self) -> float | None:
        """What the chosen one has of the metric."""
        return self.chosen.values[self.metric] if self.chosen else None

    @property
    def gone(self) -> frozenset[int]:
        """Steps of which only checkpoints were scored that are not there any more."""
        rows = self.choice.rows if self.choice else ()
        scored = {row.digest for row in self.rows}
        there = {row.step for row in rows if row.standing is not Standing.GONE and row.digest in scored}
        return frozenset(row.step for row in rows if row.step not in there)


def scoreboard_of(
    rows: Sequence[Measured],
    present: Mapping[int, str] | Collection[tuple[int, str]],
    metric: str | None = None,
    mode: Mode | None = None,
    guards: Iterable[Guard] = (),
    incomplete: Collection[int] = (),
    decider: Decider | None = None,
) -> Scoreboard:
    """Put scores together.

    Args:
        rows: by step.
        present, guards, incomplete: as in `keepstep.plan.choice.choose`.
        metric: the one that decides; by default what `decider` says, else the first of the set "task", else the first
            of all.
        mode: "max" or "min"; by default what `decider` says of its metric, else "min" for names like loss or error.
        decider: what the run itself says. Its guards count where the metric is its own and no guards are given.

    Raises:
        ConfigError: a name means several metrics, or none.
    """
    digests = {digest for _, digest in (present.items() if isinstance(present, Mapping) else present)}
    rows = sorted(rows, key=lambda row: (row.step, row.digest in digests))
    names = list(dict.fromkeys(name for row in rows for name in row.metrics))
    choice, source = None, ""
    why = "no score holds a metric" if rows else "no checkpoint was scored"
    if names:
        own = decider if decider and metric is None else None
        decides = full_name(metric, names) if metric else own.metric if own else default_metric(names)
        guards = tuple(guards) or (own.guards if own else ())
        mode = mode or (own.mode if own else None) or default_mode(decides)
        choice = choose(rows, present, decides, mode, guards, incomplete)
        source = own.source if own else ""
        why = why_none(choice) if choice.chosen is None else ""
    series = tuple(series_of(name, _pairs(rows, name), MOST_POINTS) for name in names)
    problems = _problems(rows, choice.metric if choice else "")
    return Scoreboard(choice, metric is not None, why, series, tuple(rows), problems, source)


def default_metric(names: Sequence[str]) -> str:
    """The metric that decides where nobody says; empty without metrics."""
    return next((name for name in names if name.startswith(f"{DEFAULT_SET}/")), names[0] if names else "")


def default_mode(metric: str) -> Mode:
    """Whether less of it is better, by its name."""
    return "min" if _LESS_IS_BETTER.search(metric) else "max"


def _pairs(rows: Sequence[Measured], name: str) -> list[tuple[int, float]]:
    return [(row.step, row.metrics[name]) for row in rows if name in row.metrics]


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
