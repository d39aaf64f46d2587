"""Scores, and which of them decides."""

import math

import pytest

from keepstep.errors import ConfigError
from keepstep.plan.report.scoreboard import Chosen, asked_mode, default_mode, scoreboard_of
from keepstep.plan.scores import Measured


def one(step: int, ambiguous: tuple[str, ...] = (), **metrics: float) -> Measured:
    return Measured(step, f"d{step}", f"save-{step}", {f"task/{k}": v for k, v in metrics.items()}, ambiguous)


def test_the_first_metric_of_the_set_task_decides() -> None:
    rows = [Measured(1, "d", "save-1", {"canary/recall": 9.0, "task/accuracy": 0.5}), one(2, accuracy=0.75)]
    found = scoreboard_of(rows, {1})
    assert (found.metric, found.mode, found.asked) == ("task/accuracy", "max", False)
    assert found.chosen == Chosen(2, 0.75, present=False)


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("task/loss", "min"),
        ("eval/val_loss", "min"),
        ("task/perplexity", "min"),
        ("task/error", "min"),
        ("task/error-rate", "min"),
        ("asr/WER", "min"),
        ("task/accuracy", "max"),
        ("task/lossless", "max"),
        ("task/terror", "max"),
    ],
)
def test_the_name_tells_whether_less_is_better(metric: str, mode: str) -> None:
    assert default_mode(metric) == mode


def test_nan_infinity_and_ambiguous_values_are_never_chosen() -> None:
    rows = [
        one(1, acc=math.nan),
        one(2, acc=math.inf),
        one(3, ("task/acc",), acc=9.0),
        one(4, acc=0.1),
        one(5, acc=0.1),
    ]
    found = scoreboard_of(rows, {4})
    assert found.chosen == Chosen(4, 0.1, present=True)
    assert found.problems == (
        "step 1: task/acc is not finite",
        "step 2: task/acc is not finite",
        "step 3: two sets give task/acc with different values",
    )


def test_missing_metrics_are_said() -> None:
    rows = [one(1, acc=0.5), one(2, f1=0.5), Measured(3, "d3", "save-3", {}, failed={"task": "exit code 1"})]
    found = scoreboard_of(rows, ())
    assert found.problems == ("step 2: it has no task/acc", "step 3: scoring on task failed: exit code 1")
    assert [series.name for series in found.series] == ["task/acc", "task/f1"]


def test_why_nothing_is_chosen() -> None:
    assert scoreboard_of([], ()).why_none == "no checkpoint was scored"
    assert scoreboard_of([Measured(1, "d", "c", {})], ()).why_none == "no score holds a metric"
    assert scoreboard_of([one(1, acc=math.nan)], ()).why_none.startswith("no value of task/acc can be compared")
    found = scoreboard_of([one(1, acc=0.5)], (), "task/f1")
    assert (found.why_none, found.asked) == ("no checkpoint has the metric task/f1; there are task/acc", True)


def test_a_mode_is_max_or_min() -> None:
    assert (asked_mode(None), asked_mode("min")) == (None, "min")
    with pytest.raises(ConfigError, match="it is max"):
        asked_mode("most")
    assert scoreboard_of([one(1, acc=0.5), one(2, acc=0.25)], (), "task/acc", "min").chosen == Chosen(2, 0.25, False)
