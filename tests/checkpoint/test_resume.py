"""The resume path on one process: what it takes, and that it changes nothing when it refuses."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import keepstep
from keepstep.errors import (
    CheckpointNotFoundError,
    CouldNotLookError,
    DamagedCheckpointError,
    StateMismatchError,
)
from tests.rig import tiny


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of the tiny job with save-5 and save-10."""
    tiny.train(tiny.Tiny(str(tmp_path), total=10))
    return tmp_path / "tiny"


def resumed(run: Path, total: int = 15, step: int | None = None) -> dict[str, Any]:
    return tiny.train(tiny.Tiny(str(run.parent), total=total, resume_step=step, keep=None))


def test_the_newest_is_taken_and_the_log_says_so(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "keepstep")
    assert resumed(run)["start"] == 10
    assert f"resumed from step 10 ({run / 'save-10'})" in caplog.text


def test_an_empty_folder_is_a_fresh_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "keepstep")
    assert resumed(tmp_path / "tiny")["start"] == 0
    assert "starting from the first step" in caplog.text


@pytest.mark.parametrize("stop", [1, 2, 3, 7, 9])
def test_a_stop_at_any_step_ends_in_the_same_state(tmp_path: Path, stop: int) -> None:
    whole = tiny.train(tiny.Tiny(str(tmp_path / "a"), total=20, period=1, log=str(tmp_path / "a.log")))

    class Crash(Exception):
        pass

    def crash(step: int) -> None:
        if step == stop + 1:
            raise Crash

    with pytest.raises(Crash):
        tiny.train(tiny.Tiny(str(tmp_path / "b"), total=20, period=1, log=str(tmp_path / "b.log"), on_step=crash))
    again = tiny.train(tiny.Tiny(str(tmp_path / "b"), total=20, period=1, log=str(tmp_path / "b.log")))
    assert again.pop("start") == stop
    assert whole.pop("start") == 0
    assert again == whole
    assert tiny.read_log(str(tmp_path / "b.log")) == tiny.read_log(str(tmp_path / "a.log"))


def test_a_requested_step_is_taken_and_no_other(run: Path) -> None:
    assert resumed(run, step=5)["start"] == 5
    with pytest.raises(CheckpointNotFoundError, match="step 7 was asked for; steps that can be resumed: 15, 10, 5"):
        resumed(run, step=7)


def test_a_file_in_place_of_the_folder_is_no_fresh_start(tmp_path: Path) -> None:
    (tmp_path / "tiny").write_text("")
    with pytest.raises(CouldNotLookError, match="cannot look for checkpoints"):
        resumed(tmp_path / "tiny")


def test_a_folder_that_cannot_be_listed_is_no_fresh_start(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(CouldNotLookError, match="Permission denied"):
        resumed(run)


@pytest.mark.parametrize("name", ["__0_0.distcp", "__0.index", ".metadata", "run.json", "manifest.json"])
def test_a_truncated_file_makes_it_fall_back(run: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    os.truncate(run / "save-10" / name, 0)
    assert resumed(run)["start"] == 5
    assert f"ignored {run / 'save-10'}" in caplog.text


@pytest.mark.parametrize("position", [100, -100])
def test_a_flipped_byte_makes_it_fall_back(run: Path, position: int, caplog: pytest.LogCaptureFixture) -> None:
    file = run / "save-10" / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[position] ^= 4
    file.write_bytes(data)
    assert resumed(run)["start"] == 5
    assert "save-10 is damaged: __0_0.distcp: its content has changed in 1 blocks" in caplog.text


def test_a_damaged_one_that_was_asked_for_is_an_error(run: Path) -> None:
    file = run / "save-10" / "__0_0.distcp"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(DamagedCheckpointError, match="save-10 is damaged"):
        resumed(run, step=10)


def test_when_nothing_good_is_left_it_stops_and_says_so(run: Path) -> None:
    for step in (5, 10):
        os.truncate(run / f"save-{step}" / ".metadata", 3)
    with pytest.raises(DamagedCheckpointError, match=r"save-10: \.metadata has 3 bytes"):
        resumed(run)


def test_a_damaged_checkpoint_is_replaced_when_its_step_comes_again(run: Path) -> None:
    os.truncate(run / "save-10" / ".metadata", 0)
    resumed(run, total=10)
    assert resumed(run)["start"] == 10
    assert (run / ".keepstep" / "quarantine" / "save-10.2" / "manifest.json").is_file()


def test_a_moved_run_resumes(run: Path, tmp_path: Path) -> None:
    shutil.move(run, tmp_path / "elsewhere" / "tiny")
    assert resumed(tmp_path / "elsewhere" / "tiny")["start"] == 10


def test_foreign_files_inside_a_checkpoint_harm_nothing(run: Path) -> None:
    (run / "save-10" / ".scored").write_text("")
    assert resumed(run)["start"] == 10


def checkpointer(tmp_path: Path, **parts: Any) -> keepstep.Checkpointer:
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=5)
    return keepstep.Checkpointer(config, keepstep.JobState(**parts), run_name="run")


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def test_what_is_registered_and_not_saved_is_named_and_nothing_changes(tmp_path: Path) -> None:
    with checkpointer(tmp_path, model=nn.Linear(2, 2)) as saver:
        saver.save(5)
    model, task = nn.Linear(2, 2), Holder(1)
    before = model.weight.clone()
    with (
        checkpointer(tmp_path, model=model, task=task) as loader,
        pytest.raises(StateMismatchError, match=r"Registered, but not in the checkpoint: task\.\*"),
    ):
        loader.resume()
    assert torch.equal(model.weight, before)
    assert task.value == 1


def test_what_is_saved_and_taken_by_nobody_is_named(tmp_path: Path) -> None:
    with checkpointer(tmp_path, model=nn.Linear(2, 2), task=Holder(1)) as saver:
        saver.save(5)
    with (
        checkpointer(tmp_path, model=nn.Linear(2, 2)) as loader,
        pytest.raises(StateMismatchError, match=r"nobody takes it: task\.__names__, task\.value"),
    ):
        loader.resume()


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            nn.Linear(3, 2),
            r"In both, but different: model\.weight: shape \(2, 2\) in the checkpoint, \(2, 3\) in the model",
        ),
        (
            nn.Linear(2, 2).double(),
            r"different: model\.weight: dtype torch\.float32 in the checkpoint, torch\.float64",
        ),
        (nn.Linear(2, 2, bias=False), r"nobody takes it: model\.bias"),
        (nn.Sequential(nn.Linear(2, 2)), r"not in the checkpoint: model\.0\.weight"),
    ],
)
def test_another_model_is_refused_by_name(tmp_path: Path, other: nn.Module, text: str) -> None:
    with checkpointer(tmp_path, model=nn.Linear(2, 2)) as saver:
        saver.save(5)
    before = {key: value.clone() for key, value in other.state_dict().items()}
    with checkpointer(tmp_path, model=other) as loader, pytest.raises(StateMismatchError, match=text):
        loader.resume()
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())


def test_containers_grow_and_shrink(tmp_path: Path) -> None:
    saved = {"list": [1, torch.ones(3)], "empty": {}}
    with checkpointer(tmp_path, task=Holder(saved)) as saver:
        saver.save(5)
    task = Holder({"list": [torch.zeros(9)] * 4, "other": torch.zeros(2)})
    with checkpointer(tmp_path, task=task) as loader:
        assert loader.resume() == 5
    assert task.value["list"][0] == 1
    assert torch.equal(task.value["list"][1], torch.ones(3))
    assert task.value["empty"] == {}


def steps(run: Path) -> list[int]:
    from keepstep.storage.survey import survey

    return [c.found.step for c in survey(run).complete]


def test_going_back_makes_the_newer_ones_no_part_of_the_run_and_keeps_them(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resumed(run, total=20)
    assert steps(run) == [5, 10, 15, 20]

    def crash(step: int) -> None:
        if step == 12:
            raise KeyboardInterrupt

    again = tiny.Tiny(str(run.parent), total=20, resume_step=5, keep=1, on_step=crash)
    with pytest.raises(KeyboardInterrupt):
        tiny.train(again)
    assert steps(run) == [10]  # of the new line; 5 is older than the one to keep
    aside = run / ".keepstep" / "set-aside"
    assert sorted(path.name.rpartition("-")[0] for path in aside.iterdir()) == ["save-10", "save-15", "save-20"]
    assert "this run went on from step 5" in caplog.text
    assert resumed(run, total=15)["start"] == 10


def test_a_checkpoint_of_a_newer_version_stops_the_job_instead_of_an_older_one_being_taken(run: Path) -> None:
    import json

    manifest = run / "save-10" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 2}))
    with pytest.raises(CouldNotLookError, match="written by a newer keepstep"):
        resumed(run)


def test_a_manifest_of_something_else_is_foreign(run: Path) -> None:
    (run / "save-20").mkdir()
    (run / "save-20" / "manifest.json").write_text('{"name": "a browser extension"}')
    assert resumed(run)["start"] == 10
    other = run.with_name("other")
    other.mkdir()
    (run / "save-20").rename(other / "save-20")
    config = keepstep.CheckpointingConfig(save_dir=str(run.parent), period_steps=5)
    assert keepstep.Checkpointer(config, keepstep.JobState(model=nn.Linear(1, 1)), "other").resume() == 0


def test_a_folder_that_cannot_be_made_is_met_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path / "file" / "runs"), period_steps=5)
    with pytest.raises((keepstep.SaveError, CouldNotLookError)):
        keepstep.Checkpointer(config, keepstep.JobState(model=nn.Linear(1, 1))).resume()


def test_state_that_cannot_be_stored_is_met_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(keepstep.UnsupportedStateError, match=r"task\.value"):
        checkpointer(tmp_path, task=Holder(object())).resume()


def test_a_link_with_a_checkpoint_s_name_is_named_before_a_fresh_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "save-5").symlink_to(tmp_path)
    assert checkpointer(tmp_path, model=nn.Linear(1, 1)).resume() == 0
    assert "save-5: a checkpoint is a folder" in caplog.text


def test_a_data_set_of_another_length_is_refused_before_any_weight_changes(tmp_path: Path) -> None:
    parts = tiny.build()
    with checkpointer(tmp_path, model=parts["model"], data=parts["data"]) as saver:
        saver.save(5)
    other = tiny.build()
    other["data"]._length = 51
    before = torch.zeros(16, 8)
    with torch.no_grad():
        other["model"][0].weight.copy_(before)
    with (
        checkpointer(tmp_path, model=other["model"], data=other["data"]) as loader,
        pytest.raises(StateMismatchError, match="length 50 when saved, 51 now"),
    ):
        loader.resume()
    assert torch.equal(other["model"][0].weight, before)
