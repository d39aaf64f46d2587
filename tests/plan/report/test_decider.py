"""What a run says itself of the metric that decides."""

from typing import Any

import pytest

from keepstep.config.bounds import parse_guard
from keepstep.plan.report.decider import Decider, decider_of
from keepstep.plan.report.scoreboard import scoreboard_of
from keepstep.plan.scores import Measured


def job(best: Any) -> dict[str, Any]:
    return {"config": {"trainer": {"checkpointing": {"keep": {"best": best}}}}}


def arguments(**values: Any) -> dict[str, Any]:
    return {"config": {"training_arguments": values}}


HISTORY = [
    {"step": 10, "loss": 1.0},
    {"step": 10, "eval_loss": 1.0, "eval_accuracy": 0.5},
    {"step": 20, "eval_loss": 0.8, "eval_accuracy": 0.7},
    {"step": 30, "eval_loss": 0.9, "eval_accuracy": 0.9},
]


@pytest.mark.parametrize(
    "best", [{"metric": "a/b", "mode": "min"}, [{"metric": "a/b", "mode": "min"}, {"metric": "c/d"}]]
)
def test_of_a_job(best: Any) -> None:
    assert decider_of(job(best), {}) == Decider("a/b", "min", (), "keep.best of the run")


def test_guards_of_a_job() -> None:
    for guards in ("a/c>1", ["a/c>1"]):
        found = decider_of(job({"metric": "a/b", "mode": "max", "guards": guards}), {})
        assert found is not None
        assert found.guards == (parse_guard("a/c>1"),)


@pytest.mark.parametrize(
    ("more", "mode"), [({"greater_is_better": False}, "min"), ({"greater_is_better": True}, "max"), ({}, None)]
)
def test_of_a_trainers_arguments(more: dict[str, Any], mode: str | None) -> None:
    for name in ("f1", "eval_f1"):
        found = decider_of(arguments(metric_for_best_model=name, **more), {"best_metric": 0.8, "log_history": HISTORY})
        assert found is not None
        assert (found.metric, found.mode) == ("eval/f1", mode)


def test_of_a_trainers_state() -> None:
    state: dict[str, Any] = {"best_metric": 0.9, "log_history": HISTORY}
    assert decider_of({}, state | {"best_model_checkpoint": "out/checkpoint-20"}) is None
    for more in ({"best_global_step": 30}, {"best_model_checkpoint": "out/checkpoint-30"}, {}):
        found = decider_of({}, state | more)
        assert found == Decider("eval/accuracy", "max", (), "best_metric of the Trainer's state")
    # Of two that have the value one is at its best.
    both = [*HISTORY, {"step": 40, "eval_loss": 0.9, "eval_accuracy": 0.9, "eval_f1": 0.9}]
    assert decider_of({}, {"best_metric": 0.9, "log_history": both, "best_global_step": 40}) is None
    found = decider_of({}, {"best_metric": 0.8, "log_history": HISTORY, "best_global_step": 20})
    assert found is not None
    assert (found.metric, found.mode) == ("eval/loss", "min")


@pytest.mark.parametrize(
    ("record", "state"),
    [
        ({}, {}),
        (job(None), {}),
        (job("a/b"), {}),
        (job([5]), {}),
        (job({"metric": "a/b", "guards": "none"}), {}),
        ({"config": 5}, {"best_metric": "x", "log_history": 5}),
        (arguments(metric_for_best_model=5), {"best_metric": 1, "log_history": [5], "best_model_checkpoint": "-x"}),
    ],
)
def test_nothing_is_said(record: dict[str, Any], state: dict[str, Any]) -> None:
    assert decider_of(record, state) is None


def test_it_decides_where_nobody_asks() -> None:
    rows = [Measured(step, f"d{step}", "", {"task/a": step, "task/b": -step, "task/c": step}) for step in (1, 2)]
    there = {1: "d1", 2: "d2"}
    own = Decider("task/b", "max", (parse_guard("task/c>1"),), "the run")
    found = scoreboard_of(rows, there, decider=own)
    assert (found.metric, found.value, found.source, found.asked) == ("task/b", -2, "the run", False)
    assert scoreboard_of(rows, there, guards=[parse_guard("task/a<9")], decider=own).value == -1
    assert scoreboard_of(rows, there, mode="min", guards=[parse_guard("task/a<9")], decider=own).value == -2
    asked = scoreboard_of(rows, there, "a", decider=own)
    assert (asked.metric, asked.value, asked.source) == ("task/a", 2, "")
