"""Damaged checkpoints: found, named, put away with a report, and never tried twice."""

import errno
import json
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
    ResumeError,
)
from keepstep.storage import files, part
from keepstep.storage.index import from_bytes
from keepstep.storage.leases import held_steps, hold
from tests.rig import forks

SIZE = 200


def checkpointer(folder: Path, model: nn.Module | None = None, **config: Any) -> keepstep.Checkpointer:
    settings = {"save_dir": str(folder), "period_steps": 5, **config}
    state = keepstep.JobState(model=model if model is not None else nn.Linear(SIZE, SIZE))
    return keepstep.Checkpointer(keepstep.CheckpointingConfig(**settings), state, "run", world=forks.world)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with save-5 and save-10, whose weights are the step."""
    model = nn.Linear(SIZE, SIZE)
    with checkpointer(tmp_path, model) as saver:
        for step in (5, 10):
            torch.nn.init.constant_(model.weight, step)
            saver.save(step)
    return tmp_path / "run"


def resumed(run: Path, step: int | None = None, **config: Any) -> int:
    model = nn.Linear(SIZE, SIZE)
    with checkpointer(run.parent, model, **config) as saver:
        start = saver.resume(step)
        assert start == 0 or model.weight.unique().tolist() == [float(start)]
        return start


def flip(path: Path, offset: int = -5000) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def reports(run: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in sorted((run / ".keepstep/quarantine").glob("*.json"))}


def test_a_flipped_byte_is_put_into_quarantine_with_a_report(run: Path) -> None:
    before = {path.name: path.read_bytes() for path in (run / "save-10").iterdir()}
    flip(run / "save-10" / "__0_0.distcp")
    damaged = (run / "save-10" / "__0_0.distcp").read_bytes()
    assert resumed(run) == 5
    assert not (run / "save-10").exists()
    moved = run / ".keepstep" / "quarantine" / "save-10.2"
    assert {p.name: p.read_bytes() for p in moved.iterdir()} == {**before, "__0_0.distcp": damaged}
    report = reports(run)["save-10.2.json"]
    assert (report["step"], report["falls_back_to"], report["steps_lost"]) == (10, 5, 5)
    (damage,) = report["damage"]
    assert (damage["file"], damage["rank"], damage["tensors"]) == ("__0_0.distcp", 0, ["model.weight"])
    assert "its content has changed" in damage["problem"]
    assert resumed(run) == 5


@pytest.mark.parametrize("name", ["__0_0.distcp", "__0.index", ".metadata", "run.json", "manifest.json"])
def test_a_file_that_was_cut_is_put_away_before_anything_is_loaded(run: Path, name: str) -> None:
    os.truncate(run / "save-10" / name, (run / "save-10" / name).stat().st_size - 1)
    assert resumed(run) == 5
    assert list(reports(run)) == ["save-10.2.json"]


def test_files_that_are_missing_may_still_arrive_so_nothing_is_moved(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.move(run / "save-10" / "__0_0.distcp", run.parent / "apart")
    assert resumed(run) == 5
    assert "ignored" in caplog.text
    assert "__0_0.distcp is missing" in caplog.text
    shutil.move(run.parent / "apart", run / "save-10" / "__0_0.distcp")
    assert resumed(run) == 10


def test_a_copy_that_arrives_in_any_order_is_taken_when_it_is_whole(run: Path, tmp_path: Path) -> None:
    files = sorted(path.name for path in (run / "save-10").iterdir())
    for turn in range(len(files)):
        copy = tmp_path / f"copy-{turn}" / "run"
        shutil.copytree(run / "save-5", copy / "save-5")
        (copy / "save-10").mkdir()
        for number, name in enumerate(files[turn:] + files[:turn], 1):
            shutil.copy(run / "save-10" / name, copy / "save-10" / name)
            assert resumed(copy) == (10 if number == len(files) else 5)


def test_with_nothing_good_left_it_stops_now_and_at_every_later_start(run: Path) -> None:
    for step in (5, 10):
        flip(run / f"save-{step}" / "__0_0.distcp")
    with pytest.raises(DamagedCheckpointError, match="nothing good is left") as caught:
        resumed(run)
    assert caught.value.exit_code == 4
    assert sorted(reports(run)) == ["save-10.2.json", "save-5.2.json"]
    assert reports(run)["save-5.2.json"]["falls_back_to"] is None
    # Without its checkpoints the folder looks as if the run had not begun yet.
    with pytest.raises(DamagedCheckpointError, match=r"save-10, save-5 was damaged and lies in .keepstep/quarantine"):
        resumed(run)
    with pytest.raises(CheckpointNotFoundError, match="save-10 was damaged and lies in"):
        resumed(run, step=10)


@pytest.mark.parametrize("cut", [True, False])
def test_the_policy_may_be_to_stop_and_move_nothing(run: Path, cut: bool) -> None:
    file = run / "save-10" / "__0_0.distcp"
    os.truncate(file, 10) if cut else flip(file)
    with pytest.raises(DamagedCheckpointError, match=r"save-10 is damaged: .*on_damage: fall_back takes"):
        resumed(run, on_damage="stop")
    assert file.exists()
    assert not (run / ".keepstep").exists()


def test_a_job_that_never_saves_moves_nothing(run: Path) -> None:
    flip(run / "save-10" / "__0_0.distcp")
    assert resumed(run, period_steps="disable") == 5
    assert (run / "save-10").is_dir()
    assert not (run / ".keepstep").exists()


def test_a_checkpoint_that_a_reader_holds_stays(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    flip(run / "save-10" / "__0_0.distcp")
    with hold(run, 10):
        assert held_steps(run) == {10}
        assert resumed(run) == 5
        assert (run / "save-10").is_dir()
    assert "a reader holds it" in caplog.text
    assert resumed(run) == 5
    assert not (run / "save-10").exists()


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_read_error_is_no_damage(run: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def broken(descriptor: int, buffers: Any, offset: int) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(part.os, "preadv", broken)
        with pytest.raises((ResumeError, CouldNotLookError), match=os.strerror(number)):
            resumed(run)
    assert (run / "save-10").is_dir()
    assert resumed(run) == 10


def test_bytes_that_are_wrong_in_memory_only_are_read_again(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a page of the cache that has gone bad: the disk has the last word."""
    read = files.read_fully
    spoilt = 0

    def spoil(descriptor: int, offset: int, target: memoryview) -> None:
        nonlocal spoilt
        read(descriptor, offset, target)
        target[0] ^= 1
        spoilt += 1

    monkeypatch.setattr(files, "read_fully", spoil)
    assert resumed(run) == 10
    assert spoilt
    assert "right from the disk" in caplog.text


def test_only_what_is_loaded_is_compared_where_that_is_asked_for(tmp_path: Path) -> None:
    def start(*, save: bool = False, **config: Any) -> int:
        settings = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=5, **config)
        model = nn.Linear(SIZE, SIZE)
        extra = {"extra": nn.Linear(SIZE, SIZE)} if save else {}
        state = keepstep.JobState(model=nn.ModuleDict({"kept": model, **extra}), optional={"model"})
        with keepstep.Checkpointer(settings, state, "run", world=forks.world) as saver:
            if save:
                saver.save(5)
                return 5
            return saver.resume()

    start(save=True)
    file = tmp_path / "run" / "save-5" / "__0_0.distcp"
    (place,) = [
        item.data
        for one in from_bytes((tmp_path / "run" / "save-5" / "__0.index").read_bytes())
        for item in one.items
        if item.key == "model.extra.weight"
    ]
    flip(file, place + 80_000)
    assert start(verify_on_resume="loaded") == 5
    with pytest.raises(DamagedCheckpointError, match=r"model\.extra\.weight"):
        start()


@pytest.mark.parametrize("size", [1, 2])
def test_all_ranks_fall_back_together_and_one_of_them_moves(run: Path, size: int) -> None:
    flip(run / "save-10" / "__0_0.distcp")
    assert forks.values(lambda: resumed(run), size) == [5] * size
    assert list(reports(run)) == ["save-10.2.json"]
