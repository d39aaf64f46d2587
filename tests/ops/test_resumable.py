"""Which checkpoint of a folder would be taken, after every byte of it was read."""

import json
import os
from pathlib import Path

import pytest

from keepstep.ops.resumable import look_ahead
from keepstep.storage.line import Line, note_line
from tests.rig.folders import make_checkpoint
from tests.rig.trainer_folders import adopt, make_trainer_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 10):
        make_trainer_checkpoint(tmp_path, step, ranks=2)
    return adopt(tmp_path)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_the_newest(run: Path) -> None:
    told: list[tuple[int, int]] = []
    found = look_ahead(run, lambda *numbers: told.append(numbers))
    assert (found.outcome, found.exit_code, found.step, found.world_size) == ("resume", 0, 10, 2)
    assert found.checkpoint == str(run / "checkpoint-10")
    assert found.verified == told[-1][0] == told[-1][1]
    assert found.record["adopted"] is True
    assert found.trainer is not None
    assert found.trainer.epoch == 1.0


def test_a_damaged_one_is_passed_over(run: Path) -> None:
    flip(run / "checkpoint-10" / "scheduler.pt")
    found = look_ahead(run)
    assert (found.outcome, found.exit_code, found.step) == ("resume", 0, 5)
    assert "checkpoint-10 is damaged: scheduler.pt: its content has changed" in found.notes[0]
    flip(run / "checkpoint-5" / "optimizer.pt")
    found = look_ahead(run)
    assert (found.outcome, found.exit_code) == ("damaged", 4)
    assert "optimizer.pt" in found.problem


def test_one_that_is_named(run: Path) -> None:
    assert look_ahead(run / "checkpoint-5").step == 5
    os.truncate(run / "checkpoint-5" / "optimizer.pt", 3)
    found = look_ahead(run / "checkpoint-5")
    assert (found.outcome, found.exit_code) == ("failed", 1)
    assert "checkpoint-5 is damaged: optimizer.pt has 3 bytes" in found.problem


def test_a_folder_with_those_of_a_trainer_alone_is_not_an_empty_one(tmp_path: Path) -> None:
    assert look_ahead(tmp_path).outcome == "fresh"
    (tmp_path / "checkpoint-3").mkdir()  # a save of the Trainer that was killed
    assert look_ahead(tmp_path).outcome == "fresh"
    make_trainer_checkpoint(tmp_path, 5)
    found = look_ahead(tmp_path)
    assert (found.outcome, found.exit_code) == ("failed", 1)
    assert f"keepstep adopt {tmp_path}" in found.problem
    adopt(tmp_path / "checkpoint-5")
    assert look_ahead(tmp_path).step == 5


def test_a_run_that_went_on_from_another_folder(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    note_line(other, Line(0, 1, None, str(run / "checkpoint-5")))
    found = look_ahead(other)
    assert (found.outcome, found.step, found.folder) == ("resume", 5, str(other))
    assert found.verified > 0
    plain = make_trainer_checkpoint(tmp_path / "plain", 7)
    note_line(other, Line(0, 1, None, str(plain)))
    found = look_ahead(other)
    assert (found.outcome, found.step, found.verified) == ("resume", 7, 0)
    assert "cannot be verified" in found.notes[-1]
    note_line(other, Line(0, 1, None, str(tmp_path / "gone")))
    assert look_ahead(other).exit_code == 1


def test_an_abandoned_line_is_not_taken(run: Path) -> None:
    note_line(run, Line(5, 2))
    assert look_ahead(run).step == 5


def test_what_was_damaged_lies_in_quarantine(run: Path) -> None:
    place = run / ".keepstep" / "quarantine"
    place.mkdir(parents=True)
    for step in (5, 10):
        (run / f"checkpoint-{step}").rename(place / f"checkpoint-{step}.1")
    assert look_ahead(run).exit_code == 4


def test_a_folder_of_keepsteps_own(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 5)
    found = look_ahead(tmp_path)
    assert (found.outcome, found.step, found.trainer) == ("resume", 5, None)


def test_its_facts_are_json(run: Path) -> None:
    assert json.dumps(look_ahead(run).record)
