"""`checkpointing.keep`."""

from typing import Any

import pytest
from pydantic import ValidationError

from keepstep.config import CheckpointingConfig
from keepstep.config.retention import Keep, KeepBest


def config(**more: Any) -> CheckpointingConfig:
    return CheckpointingConfig.model_validate({"save_dir": "runs", "period_steps": 100, **more})


def test_all_of_it_is_optional_and_one_rule_or_several_find_the_best() -> None:
    one = config(num_to_keep=2, keep={"best": {"metric": "task/accuracy", "mode": "max", "number": 3}})
    assert one.keep == Keep(best=(KeepBest(metric="task/accuracy", mode="max", number=3),))
    several = [{"metric": "task/accuracy", "mode": "max"}, {"metric": "task/loss", "mode": "min"}]
    found = config(num_to_keep=2, keep={"best": several}).keep
    assert found is not None
    assert [rule.number for rule in found.best] == [1, 1]
    assert config().keep is None
    assert config(keep={}).keep == config(keep={"best": None}).keep == Keep()


@pytest.mark.parametrize(
    ("keep", "text"),
    [
        ({"every_steps": 0}, "greater than or equal to 1"),
        ({"every_steps": 10.0}, "integer"),
        ({"every_step": 10}, "Extra inputs"),
        ({"best": {"metric": "accuracy", "mode": "max"}}, "<set>/<metric>"),
        ({"best": {"metric": "task/accuracy"}}, "mode"),
        ({"best": {"metric": "task/accuracy", "mode": "max", "number": 0}}, "greater than or equal to 1"),
        ({"best": {"metric": "task/a", "mode": "max", "guards": "canary/a=1"}}, "must be a metric, one of"),
        ({"best": {"metric": "task/a", "mode": "max", "guards": ["a>1"]}}, "<set>/<metric>"),
        ({"best": {"metric": "task /a", "mode": "max"}}, "<set>/<metric>"),
        ({"best": {"metric": "task/a", "mode": "max", "guards": "canary/ a>1"}}, "<set>/<metric>"),
        ({"best": {"metric": "task/a", "mode": "max", "guards": "canary/a>1_0"}}, "must be a metric, one of"),
        ({"younger_than_hours": 0}, "greater than 0"),
        ({"younger_than_hours": True}, "must be a number, not true or false"),
        ({"disk_budget_gb": True}, "must be a number, not true or false"),
        ({"younger_than_hours": float("inf")}, "finite"),
        ({"disk_budget_gb": -1}, "greater than 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(keep: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        config(num_to_keep=2, keep=keep)


def test_spaces_around_a_name_are_no_part_of_it() -> None:
    assert KeepBest(metric=" task/a ", mode="max").metric == "task/a"


NUMBERS = ("period_minutes", "max_loss_minutes", "max_failed_saves", "grace_seconds", "hang_seconds", "timeout_seconds")
OF_MIRRORS = ("period_steps", "num_to_keep", "max_mib_per_second", "max_waiting", "wait_seconds")


@pytest.mark.parametrize("name", [*NUMBERS, "peer_copies"])
def test_true_is_no_number(name: str) -> None:
    values = {"save_dir": "runs", name: True}
    if name != "period_minutes":
        values["period_steps"] = 100
    with pytest.raises(ValidationError, match="must be a number, not true or false"):
        CheckpointingConfig.model_validate(values)


@pytest.mark.parametrize("name", OF_MIRRORS)
def test_nor_is_it_one_of_a_mirror(name: str) -> None:
    with pytest.raises(ValidationError, match="must be a number, not true or false"):
        config(mirror={"address": "s3://bucket/x", name: True})


def test_rules_that_would_do_nothing_are_refused() -> None:
    with pytest.raises(ValidationError, match="num_to_keep: null keeps all: set num_to_keep to 1 or more"):
        config(keep={"every_steps": 1000})
    both = config(keep={"every_steps": 1000, "disk_budget_gb": 500}).keep
    assert both is not None
    assert both.adds
    with pytest.raises(ValidationError, match="peer_copies: 1 and keep"):
        config(num_to_keep=2, peer_copies=1, keep={"every_steps": 1000})
