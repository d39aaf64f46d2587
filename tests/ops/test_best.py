"""The best checkpoint of a folder, of a Trainer's, of a mirror."""

import shutil
from pathlib import Path

import pytest

from keepstep.config.address import parse_address
from keepstep.errors import ConfigError, CouldNotLookError
from keepstep.ops.best import find_best, metrics_of, pin_best
from keepstep.ops.pin import pin_checkpoint
from keepstep.storage.leases import pin_notes
from tests.rig.folders import make_checkpoint
from tests.rig.scores import give_score
from tests.rig.trainer_folders import adopt, make_trainer_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    for step, accuracy in ((10, 0.5), (20, 0.93), (30, 0.7)):
        give_score(make_checkpoint(run, step), accuracy=accuracy)
    return run


def test_of_a_folder(run: Path) -> None:
    found = find_best(run, "accuracy", "max")
    assert (found.choice.chosen, found.path) == (20, str(run / "save-20"))
    assert found.choice.metric == "task/accuracy"
    assert metrics_of(run) == {"task/accuracy": 3}


def test_of_a_trainers_folder(tmp_path: Path) -> None:
    for step in (10, 20):
        make_trainer_checkpoint(tmp_path, step)
    for step in (10, 20):
        give_score(adopt(tmp_path) / f"checkpoint-{step}", loss=step / 10)
    assert find_best(tmp_path, "task/loss", "min").path == str(tmp_path / "checkpoint-10")


def test_of_a_mirror_with_scores_that_lie_elsewhere(run: Path, tmp_path: Path) -> None:
    address = parse_address(f"file://{run}")
    with pytest.raises(ConfigError, match="--scores FOLDER"):
        find_best(address, "accuracy", "max")
    elsewhere = tmp_path / "scores"
    elsewhere.mkdir()
    (run / "scores.jsonl").rename(elsewhere / "scores.jsonl")
    assert find_best(run, "task/accuracy", "max").choice.chosen is None
    assert find_best(run, "task/accuracy", "max", scores=elsewhere).choice.chosen == 20
    there = find_best(address, "task/accuracy", "max", scores=elsewhere)
    assert (there.choice.chosen, there.path) == (20, f"{address}/save-20")
    with pytest.raises(CouldNotLookError, match="give the address of its run"):
        find_best(parse_address(f"file://{run}/save-20"), "accuracy", "max", scores=elsewhere)
    with pytest.raises(CouldNotLookError, match="no such folder"):
        find_best(run, "accuracy", "max", scores=tmp_path / "nowhere")


def test_incomplete_and_replaced_checkpoints_are_gone(run: Path) -> None:
    (run / "save-20" / "run.json").unlink()
    assert find_best(run, "accuracy", "max").choice.chosen == 30
    shutil.rmtree(run / "save-30")
    make_checkpoint(run, 30, size=400)
    found = find_best(run, "accuracy", "max")
    assert found.choice.chosen == 10
    assert [row.standing.value for row in found.choice.rows] == ["chosen", "gone", "gone", "left out"]
    assert found.choice.rows[1].reason == "not complete"


def test_lines_that_are_none_are_counted(run: Path) -> None:
    with (run / "scores.jsonl").open("a") as file:
        file.write("{torn\n")
    assert find_best(run, "accuracy", "max").unreadable_lines == 1


def test_the_chosen_is_pinned_with_the_reason_and_a_note_of_somebody_stays(run: Path) -> None:
    pin_best(find_best(run, "accuracy", "max"))
    assert pin_notes(run) == {20: "best by task/accuracy = 0.93"}
    pin_checkpoint(run / "save-20", "for the paper")
    pin_best(find_best(run, "accuracy", "max"))
    assert pin_notes(run) == {20: "for the paper"}


def test_what_is_no_run_is_said(run: Path) -> None:
    with pytest.raises(CouldNotLookError, match="no such folder"):
        find_best(run / "nowhere", "accuracy", "max")
    with pytest.raises(CouldNotLookError, match="is one checkpoint; give the folder of its run"):
        find_best(run / "save-20", "accuracy", "max")
    (run / "scores.jsonl").unlink()
    (run / "scores.jsonl").mkdir()
    with pytest.raises(CouldNotLookError, match="cannot read"):
        find_best(run, "accuracy", "max")
