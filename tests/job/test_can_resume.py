"""What `can_resume` says is what a start does."""

import os
from pathlib import Path

import pytest

from keepstep.config import JobConfig
from keepstep.errors import ConfigError, DamagedCheckpointError
from keepstep.job.asked import Asked
from keepstep.job.can_resume import can_resume
from keepstep.job.inference import InferenceJob
from keepstep.job.train import TrainingJob
from keepstep.storage.lock import acquire_lock
from tests.rig import forks, jobs


def run(config: JobConfig) -> None:
    (TrainingJob if config.trainer else InferenceJob)(config).run()


def damage(folder: Path) -> None:
    (folder / "manifest.json").write_text("{}")


def test_a_fresh_start(tmp_path: Path) -> None:
    found = can_resume(jobs.training(tmp_path, 12), 1)
    assert (found.outcome, found.exit_code, found.checkpoint, found.remaining_steps) == ("fresh", 0, None, 12)
    assert os.listdir(tmp_path) == []


def test_a_finished_training_needs_neither_its_data_nor_its_base(tmp_path: Path) -> None:
    run(jobs.training(tmp_path, 8))
    broken = jobs.training(tmp_path, 8, providers={"dataset": "tests.rig.jobs:broken"})
    run(broken)
    assert can_resume(broken, 1).outcome == "complete"
    with pytest.raises(ConfigError, match="must not be called"):
        can_resume(jobs.training(tmp_path, 9, providers={"dataset": "tests.rig.jobs:broken"}), 1)


def test_end_products_that_are_missing_are_named(tmp_path: Path) -> None:
    run(jobs.training(tmp_path, 8))
    config = jobs.training(tmp_path, 8, export_to=str(tmp_path / "export"))
    found = can_resume(config, 1)
    assert found.outcome == "complete"
    assert any("export" in note for note in found.notes)
    run(config)
    assert can_resume(config, 1).notes == ()
    job = jobs.inference(tmp_path / "i", output_to=str(tmp_path / "i" / "out"))
    run(job)
    assert can_resume(job, 1).notes == ()
    (tmp_path / "i" / "out").unlink()
    assert any("is written" in note for note in can_resume(job, 1).notes)


def test_what_stands_in_the_way_of_an_export_is_found_before(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "other").write_text("somebody's")
    config = jobs.training(tmp_path, 8, export_to=str(tmp_path / "export"))
    for look in (lambda: can_resume(config, 1), lambda: run(config)):
        with pytest.raises(ConfigError):
            look()


@pytest.mark.parametrize("policy", ["stop", "fall_back"])
def test_damage_is_met_as_the_start_meets_it(tmp_path: Path, policy: str) -> None:
    checkpointing = {"save_dir": str(tmp_path / "checkpoints"), "period_steps": 4, "on_damage": policy}
    run(jobs.training(tmp_path, 8, checkpointing=checkpointing))
    damage(tmp_path / "checkpoints" / "run" / "save-8")
    config = jobs.training(tmp_path, 12, checkpointing=checkpointing)
    before = jobs.tree_digest(tmp_path)
    found = can_resume(config, 1)
    assert jobs.tree_digest(tmp_path) == before
    if policy == "stop":
        assert (found.outcome, found.exit_code) == ("damaged", 4)
        with pytest.raises(DamagedCheckpointError):
            run(config)
    else:
        assert (found.outcome, found.step) == ("resume", 4)
        assert any("save-8" in note for note in found.notes)


def test_a_record_that_is_damaged_is_passed_over(tmp_path: Path) -> None:
    run(jobs.training(tmp_path, 8))
    path = tmp_path / "checkpoints" / "run" / "save-8" / "run.json"
    path.write_bytes(path.read_bytes().replace(b'"seed": 7', b'"seed": 3'))
    found = can_resume(jobs.training(tmp_path, 12), 1)
    assert (found.outcome, found.step) == ("resume", 4)


def test_a_run_that_is_in_use_is_said_to_be(tmp_path: Path) -> None:
    run(jobs.training(tmp_path, 8))
    folder = tmp_path / "checkpoints" / "run"

    lock = acquire_lock(folder)
    try:
        # In another process: in this one it would be the holder itself that asks.
        (outcome,) = forks.values(lambda: can_resume(jobs.training(tmp_path, 12), 1).outcome)
    finally:
        lock.release()
    assert outcome == "in use"


def test_inference_jobs(tmp_path: Path) -> None:
    job = jobs.inference(tmp_path)
    run(job)
    assert can_resume(job, 1).outcome == "complete"
    with pytest.raises(ConfigError, match="one line"):
        can_resume(job, 1, Asked(from_step=4))
    stream = job.model_copy(
        update={"providers": job.providers.model_copy(update={"dataset": "tests.rig.streams:plain_stream"})}
    )
    for look in (lambda: can_resume(stream, 1), lambda: run(stream)):
        with pytest.raises(ConfigError, match="needs a data set with"):
            look()
