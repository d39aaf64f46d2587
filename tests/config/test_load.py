from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from keepstep.config import CheckpointingConfig, JobConfig, load_job, parse_job
from keepstep.errors import ConfigError

PROVIDERS = {"model": "jobs:model", "dataset": "jobs:dataset", "task": "jobs:task"}


def training(**trainer: Any) -> dict[str, Any]:
    base = {
        "run": {"name": "exp-1"},
        "total_steps": 100,
        "batching": {"global_batch_size": 32, "microbatch_size": 8},
        "checkpointing": {"save_dir": "runs", "period_steps": 10, "num_to_keep": 2},
    }
    return {"providers": dict(PROVIDERS), "trainer": base | trainer}


def checkpointing(**values: Any) -> dict[str, Any]:
    return training(checkpointing={"save_dir": "runs", "period_steps": 10} | values)


def refusal(content: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_job(content)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("period", [1, 100, "last_step", "disable", "auto"])
@pytest.mark.parametrize("keep", [None, 1, 7])
def test_what_the_spec_names_is_accepted(period: Any, keep: Any) -> None:
    job = parse_job(checkpointing(period_steps=period, num_to_keep=keep))
    assert job.trainer is not None
    assert job.trainer.checkpointing == CheckpointingConfig(save_dir="runs", period_steps=period, num_to_keep=keep)


@pytest.mark.parametrize("period", [0, -1, "2x", "", None, 1.5, True, "LAST_STEP", [5]])
def test_another_period_is_refused_with_key_value_and_what_is_allowed(period: Any) -> None:
    message = refusal(checkpointing(period_steps=period))
    assert f"trainer.checkpointing.period_steps = {period!r}" in message
    assert '"last_step"' in message
    assert '"disable"' in message
    assert '"auto"' in message


@pytest.mark.parametrize("keep", [0, -1, "2", 1.5, True])
def test_another_num_to_keep_is_refused(keep: Any) -> None:
    message = refusal(checkpointing(num_to_keep=keep))
    assert f"trainer.checkpointing.num_to_keep = {keep!r}" in message
    assert "null" in message


def test_an_unknown_key_is_refused_with_the_allowed_ones_and_a_guess() -> None:
    message = refusal(checkpointing(period_step=5))
    assert "trainer.checkpointing.period_step: unknown key" in message
    assert "did you mean period_steps?" in message
    assert "num_to_keep, on_damage, on_save_error, peer_copies, period_minutes, period_steps, save_dir" in message


def test_a_missing_key_is_named() -> None:
    content = training()
    del content["trainer"]["checkpointing"]["period_steps"]
    assert "trainer.checkpointing.period_steps: missing" in refusal(content)


def test_minutes_stand_in_place_of_steps() -> None:
    content = training(checkpointing={"save_dir": "runs", "period_minutes": 7.5})
    section = parse_job(content).trainer.checkpointing  # type: ignore[union-attr]
    assert (section.period_minutes, section.period_steps, section.max_loss_minutes) == (7.5, None, 15.0)
    assert CheckpointingConfig.model_validate(section.model_dump()) == section
    assert parse_job(checkpointing(period_minutes=None)).trainer == parse_job(checkpointing()).trainer


@pytest.mark.parametrize("period", [5, "auto", "last_step", "disable"])
def test_two_periods_at_once_are_refused(period: Any) -> None:
    message = refusal(checkpointing(period_steps=period, period_minutes=5))
    assert "trainer.checkpointing: period_steps and period_minutes are two periods at once: give one" in message
    assert "period_steps=null with --set" in message


@pytest.mark.parametrize("period", [{"period_steps": 5}, {"period_steps": "disable"}, {"period_minutes": 5}])
def test_a_bound_that_no_period_heeds_is_refused(period: dict[str, Any]) -> None:
    section = {"save_dir": "runs", **period}
    message = refusal(training(checkpointing={**section, "max_loss_minutes": 5}))
    assert "trainer.checkpointing: max_loss_minutes is of period_steps: auto" in message
    for default in (15, None):
        parse_job(training(checkpointing={**section, "max_loss_minutes": default}))
    parse_job(training(checkpointing={"save_dir": "runs", "period_steps": "auto", "max_loss_minutes": 5}))


@pytest.mark.parametrize("key", ["period_minutes", "max_loss_minutes"])
@pytest.mark.parametrize("value", [0, -1, "x", 1e308, float("inf"), float("nan")])
def test_minutes_that_cannot_be_are_refused(key: str, value: Any) -> None:
    section = {"save_dir": "runs", key: value} | ({} if key == "period_minutes" else {"period_steps": "auto"})
    assert f"trainer.checkpointing.{key} = {value!r}" in refusal(training(checkpointing=section))


@pytest.mark.parametrize("name", ["", " x", "a/b", ".hidden", "..", "a\\b", "a:b"])
def test_a_run_name_that_is_no_folder_name_is_refused(name: str) -> None:
    assert "trainer.run.name" in refusal(training(run={"name": name}))


def test_a_job_is_either_a_training_or_an_inference_job() -> None:
    assert "exactly one" in refusal({"providers": PROVIDERS})
    both = training() | {"inference": {"batching": {"global_batch_size": 1}, "checkpointing": {}}}
    with pytest.raises(ConfigError):
        parse_job(both)


def test_only_one_axis_of_the_mesh_may_be_auto() -> None:
    content = training() | {"mesh": {"data_parallel_shard": "auto", "data_parallel_replicate": "auto"}}
    assert "only one axis" in refusal(content)


def test_frozen_parameters_need_a_source() -> None:
    message = refusal(training(model_stage_factory={"checkpoint_only_trainable_parameters": True}))
    assert "source_checkpoint" in message


@pytest.mark.parametrize(
    "phase", [{"to": 1.0}, {"to": 1.0, "percent": 5, "steps": 3}, {"to": 1.0, "percent": 101}, {"to": -1, "steps": 3}]
)
def test_a_phase_has_one_length_and_a_factor_of_0_or_more(phase: dict[str, Any]) -> None:
    assert "trainer.lr_scheduler.phases.0" in refusal(training(lr_scheduler={"phases": [phase]}))


def test_a_configuration_cannot_be_changed() -> None:
    job = parse_job(training())
    with pytest.raises(ValueError, match="frozen"):
        job.trainer = None  # type: ignore[misc]


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_a_file_with_overrides(tmp_path: Path) -> None:
    file = write(tmp_path / "job.yaml", training())
    overrides = ["trainer.total_steps=200", "trainer.checkpointing.period_steps=last_step", "trainer.export_to=out"]
    job = load_job(file, overrides)
    assert job.trainer is not None
    assert job.trainer.total_steps == 200
    assert job.trainer.checkpointing.period_steps == "last_step"
    assert job.trainer.export_to == "out"


@pytest.mark.parametrize("override", ["trainer.total_steps", "=3", "a..b=1", "trainer.total_steps.x=1", "a=[1"])
def test_a_malformed_override_is_refused(tmp_path: Path, override: str) -> None:
    file = write(tmp_path / "job.yaml", training())
    with pytest.raises(ConfigError, match="--set"):
        load_job(file, [override])


@pytest.mark.parametrize("text", ["", "- a", "a: [1", "a: 1\na: 2", "\x00", "just text"])
def test_a_file_that_is_no_job_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = write(tmp_path / "job.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load_job(file)
    assert "job.yaml" in str(caught.value)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such job file"):
        load_job(tmp_path / "nowhere.yaml")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda s: st.lists(s, max_size=2)))
def test_no_value_breaks_the_refusal_itself(value: Any) -> None:
    try:
        job = parse_job(checkpointing(period_steps=value))
    except ConfigError as error:
        assert "period_steps" in str(error)  # noqa: PT017
    else:
        assert isinstance(job, JobConfig)
        assert value in ("last_step", "disable", "auto") or value >= 1
