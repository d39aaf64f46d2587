"""Jobs from a configuration whose disk goes away: what a mirror has is what the job has."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from keepstep.config import JobConfig
from keepstep.errors import GuardRefusedError
from keepstep.job.asked import Asked
from keepstep.job.can_resume import can_resume
from keepstep.job.inference import InferenceJob
from keepstep.job.train import TrainingJob
from keepstep.storage.stored import survey_store
from keepstep.storage.stores.folder import FolderStore
from tests.rig import jobs


def training(base: Path, total: int, fetch: str = "download", **more: Any) -> JobConfig:
    mirror = {"address": f"file://{base / 'mirror'}", "fetch": fetch}
    config = jobs.training(base / "job", total, **more).model_dump(mode="json", exclude_none=True)
    config["trainer"]["checkpointing"]["mirror"] = mirror
    return JobConfig.model_validate(config)


def inference(base: Path, **more: Any) -> JobConfig:
    config = jobs.inference(base / "job", **more).model_dump(mode="json", exclude_none=True)
    config["inference"]["checkpointing"]["mirror"] = f"file://{base / 'mirror'}"
    return JobConfig.model_validate(config)


def wipe(base: Path) -> None:
    shutil.rmtree(base / "job")


def stored(base: Path, run: str = "run") -> list[int]:
    return [one.found.step for one in survey_store(FolderStore(base / "mirror"), run).complete]


def metrics(base: Path) -> list[Any]:
    return [
        json.loads(line) for line in (base / "job" / "checkpoints" / "run" / "metrics.jsonl").read_text().splitlines()
    ]


@pytest.mark.parametrize("fetch", ["download", "ranges"])
def test_a_training_goes_on_on_an_empty_disk(tmp_path: Path, fetch: str) -> None:
    TrainingJob(training(tmp_path, 8, fetch)).run()
    assert stored(tmp_path)[-1] == 8
    wipe(tmp_path)
    found = can_resume(training(tmp_path, 12, fetch), 1)
    assert (found.outcome, found.step, found.remaining_steps) == ("resume", 8, 4)
    assert found.checkpoint == f"file://{tmp_path / 'mirror'}/run/save-8"
    assert not (tmp_path / "job").exists()

    TrainingJob(training(tmp_path, 12, fetch)).run()

    assert metrics(tmp_path)[0]["step"] == 9
    assert stored(tmp_path)[-1] == 12


def test_a_finished_training_is_finished_on_an_empty_disk_too(tmp_path: Path) -> None:
    export = tmp_path / "export"
    TrainingJob(training(tmp_path, 8, "ranges", export_to=str(export))).run()
    wipe(tmp_path)
    shutil.rmtree(export)

    TrainingJob(training(tmp_path, 8, "ranges", export_to=str(export))).run()

    assert (export / "model.safetensors").is_file()
    assert not (tmp_path / "job" / "checkpoints" / "run" / "metrics.jsonl").exists()


def test_a_guard_speaks_before_anything_is_built(tmp_path: Path) -> None:
    TrainingJob(training(tmp_path, 8)).run()
    wipe(tmp_path)
    config = training(tmp_path, 12).model_dump(mode="json", exclude_none=True)
    config["trainer"]["determinism"] = {"base_seed": 99}

    found = can_resume(JobConfig.model_validate(config), 1)
    assert (found.outcome, found.exit_code) == ("refused", 3)
    with pytest.raises(GuardRefusedError):
        TrainingJob(JobConfig.model_validate(config)).run()


def test_a_fresh_start_is_not_undone_by_the_mirror(tmp_path: Path) -> None:
    TrainingJob(training(tmp_path, 8)).run()
    TrainingJob(training(tmp_path, 4)).run(asked=Asked(fresh=True))
    assert [row["step"] for row in metrics(tmp_path)] == [1, 2, 3, 4]
    wipe(tmp_path)

    TrainingJob(training(tmp_path, 8)).run()

    assert [row["step"] for row in metrics(tmp_path)] == [5, 6, 7, 8]


def test_an_inference_goes_on_on_an_empty_disk(tmp_path: Path) -> None:
    InferenceJob(inference(tmp_path)).run()
    whole = (tmp_path / "job" / "sums.jsonl").read_bytes()
    last = stored(tmp_path, "")[-1]
    wipe(tmp_path)

    InferenceJob(inference(tmp_path)).run()

    assert (tmp_path / "job" / "sums.jsonl").read_bytes() == whole
    assert stored(tmp_path, "")[-1] == last
