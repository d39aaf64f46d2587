"""Scores, and which of them decides."""

import math

import pytest

from keepstep.config.bounds import parse_guard
from keepstep.errors import ConfigError
from keepstep.plan.choice import choose
from keepstep.plan.report.scoreboard import default_mode, scoreboard_of
from keepstep.plan.scores import Measured


def one(step: int, doubled: tuple[str, ...] = (), digest: str = "", **metrics: float) -> Measured:
    named = {f"task/{name}": value for name, value in metrics.items()}
    return Measured(step, digest or f"d{step}", f"save-{step}", named, dict.fromkeys(doubled, (1.0, 2.0)))


def there(*steps: int) -> dict[int, str]:
    return {step: f"d{step}" for step in steps}


def test_the_choice_is_that_of_best() -> None:
    rows = [one(1, acc=0.5), one(2, acc=0.75), one(3, acc=0.6)]
    guards = [parse_guard("task/acc<0.7")]
    found = scoreboard_of(rows, there(1, 2, 3), "acc", "max", guards)
    assert found.choice == choose(rows, there(1, 2, 3), "task/acc", "max", guards)
    assert (found.asked, found.metric, found.value) == (True, "task/acc", 0.6)
    assert found.chosen is not None
    assert (found.chosen.step, found.chosen.reason) == (3, "the highest task/acc of 2 eligible")


def test_the_first_metric_of_the_set_task_decides() -> None:
    rows = [Measured(1, "d1", "save-1", {"canary/recall": 9.0, "task/accuracy": 0.5}), one(2, accuracy=0.75)]
    found = scoreboard_of(rows, there(1, 2))
    assert (found.metric, found.value, found.asked) == ("task/accuracy", 0.75, False)
    assert scoreboard_of([Measured(1, "d1", "", {"b/x": 1.0, "a/x": 1.0})], there(1)).metric == "b/x"


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("task/loss", "min"),
        ("eval/val_loss", "min"),
        ("task/perplexity", "min"),
        ("task/error", "min"),
        ("task/error-rate", "min"),
        ("asr/WER", "min"),
        ("task/bits_per_byte", "min"),
        ("task/bits", "min"),
        ("task/bpb", "min"),
        ("task/accuracy", "max"),
        ("task/rabbits", "max"),
        ("task/lossless", "max"),
        ("task/terror", "max"),
    ],
)
def test_the_name_tells_whether_less_is_better(metric: str, mode: str) -> None:
    assert default_mode(metric) == mode


def test_what_is_gone_is_shown_and_never_chosen() -> None:
    rows = [one(1, acc=0.9), one(2, digest="other", acc=0.8), one(2, acc=0.1), one(3, digest="before", acc=0.7)]
    found = scoreboard_of(rows, there(2, 3))
    assert (found.value, found.gone) == (0.1, {1, 3})
    assert [point.value for point in found.series[0].points] == [0.9, 0.1, 0.7]
    # Which of two comes first makes no difference.
    assert scoreboard_of(rows[::-1], there(2, 3)).series == found.series
    unscored = scoreboard_of([one(1, acc=0.9, f1=0.5), one(2, f1=0.5)], there(1, 2), "task/acc")
    assert unscored.gone == frozenset()


def test_nan_infinity_and_ambiguous_values_are_said() -> None:
    rows = [one(1, acc=math.nan), one(2, acc=math.inf), one(3, ("task/acc",), acc=9.0), one(4, acc=0.1)]
    found = scoreboard_of(rows, there(1, 2, 3, 4))
    assert found.value == 0.1
    assert found.problems == (
        "step 1: task/acc is not finite",
        "step 2: task/acc is not finite",
        "step 3: two sets give task/acc with different values",
    )


def test_missing_metrics_are_said() -> None:
    rows = [one(1, acc=0.5), one(2, f1=0.5), Measured(3, "d3", "save-3", {}, failed={"task": "exit code 1"})]
    found = scoreboard_of(rows, {})
    assert found.problems == ("step 2: it has no task/acc", "step 3: scoring on task failed: exit code 1")
    assert [series.name for series in found.series] == ["task/acc", "task/f1"]


def test_why_nothing_is_chosen() -> None:
    assert scoreboard_of([], {}, "acc").why_none == "no checkpoint was scored"
    assert scoreboard_of([Measured(1, "d", "c", {})], {}).why_none == "no score holds a metric"
    assert scoreboard_of([one(1, acc=math.nan)], there(1)).why_none == "its task/acc is NaN (step 1)"
    assert scoreboard_of([one(1, acc=0.5)], {}, incomplete=[1]).why_none == "not complete (step 1)"
    assert scoreboard_of([one(1, acc=0.5)], there(1), "task/f1").why_none == "has no task/f1 (step 1)"


def test_names_are_those_of_best() -> None:
    rows = [one(1, acc=0.5), Measured(2, "d2", "", {"canary/acc": 0.5, "canary/f1": 0.25})]
    assert scoreboard_of(rows, there(1, 2), "f1").metric == "canary/f1"
    with pytest.raises(ConfigError, match="acc may be any of canary/acc, task/acc"):
        scoreboard_of(rows, there(1, 2), "acc")
    with pytest.raises(ConfigError, match="no checkpoint has a metric auc"):
        scoreboard_of(rows, there(1, 2), guards=[parse_guard("auc>0")])
