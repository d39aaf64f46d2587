"""Full disks, broken ones, and what a job does about a save that failed."""

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import keepstep
from keepstep.checkpoint import save as save_module
from keepstep.errors import KeepstepError, SaveError
from keepstep.plan.space import missing_bytes
from keepstep.storage import local
from keepstep.storage import writer as writer_module
from keepstep.storage.save_log import SaveLog
from keepstep.storage.survey import survey
from tests.rig import forks
from tests.rig.folders import names

SIDE = 512
ONE = SIDE * SIDE * 4


def checkpointer(folder: Path, model: nn.Module | None = None, **config: Any) -> keepstep.Checkpointer:
    settings = {"save_dir": str(folder), "period_steps": 5, **config}
    return keepstep.Checkpointer(
        keepstep.CheckpointingConfig(**settings),
        keepstep.JobState(model=model if model is not None else nn.Linear(SIDE, SIDE)),
        "run",
        world=forks.world,
        handle_signals=False,
    )


def steps(folder: Path) -> list[int]:
    return [c.found.step for c in survey(folder / "run").complete]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Room for two and a half checkpoints."""
    place = tmp_path / "disk"
    place.mkdir()
    size = int(2.5 * (ONE + 60_000))
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


class BlindToSpace:
    """The look before the save sees plenty: the disk is full only when it is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(save_module, "free_bytes", lambda folder: None)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("blind", [False, True])
def test_a_disk_with_room_for_two_and_a_half(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, size: int, mode: str, blind: bool
) -> None:
    if blind:
        BlindToSpace(monkeypatch)

    def train(until: int) -> tuple[int, float]:
        model = nn.Linear(SIDE, SIDE)
        with checkpointer(small_disk, model, num_to_keep=2, mode=mode) as saver:
            start = saver.resume()
            for step in range(start + 1, until + 1):
                torch.nn.init.constant_(model.weight, step)
                saver.save_if_due(step)
        return start, model.weight.max().item()

    ended = forks.run(lambda: train(15), size)
    texts = {str(end.error) for end in ended}
    assert len(texts) == 1
    (text,) = texts
    assert isinstance(ended[0].error, SaveError)
    assert "saving step 15 to " in text
    if blind:
        assert "No space left on device" in text
    else:
        assert "not enough space: this checkpoint takes" in text
        assert "more than are free" in text
    assert steps(small_disk) == [5, 10]
    assert not [name for name in names(small_disk / "run") if ".tmp-" in name]
    shutil.rmtree(small_disk / "run" / "save-5")
    assert forks.values(lambda: train(15), size) == [(10, 15.0)] * size
    assert steps(small_disk) == [10, 15]


def failed(saver: keepstep.Checkpointer, step: int) -> str:
    """The error of a save, which may go on in the background."""
    try:
        saver.save(step)
        saver.wait()
    except SaveError as error:
        return str(error)
    raise AssertionError(f"step {step} was saved")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_one_rank_cannot_write(tmp_path: Path, rank: int, mode: str, number: int) -> None:
    def train() -> str:
        fails = False
        write = writer_module._Target.write

        def broken(self: Any, piece: memoryview, offset: int) -> None:
            if fails and forks.world.rank == rank:
                raise OSError(number, os.strerror(number), "the file")
            write(self, piece, offset)

        writer_module._Target.write = broken
        with checkpointer(tmp_path, mode=mode) as saver:
            saver.resume()
            saver.save(5)
            saver.wait()
            fails = True
            error = failed(saver, 10)
            fails = False
            saver.save(15)
        return error

    (text,) = set(forks.values(train, 2))
    assert f"failed on rank {rank} of 2 (" in text
    assert os.strerror(number) in text
    assert steps(tmp_path) == [5, 15]


class Failing:
    """Saves of these steps fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: set[int]) -> None:
        commit = save_module._commit

        def broken(request: save_module.SaveRequest, *arguments: Any) -> None:
            if request.step in failing:
                raise OSError(errno.ENOSPC, "No space left on device", str(request.final))
            commit(request, *arguments)

        monkeypatch.setattr(save_module, "_commit", broken)


def run(saver: keepstep.Checkpointer, last: int) -> None:
    for step in range(1, last + 1):
        saver.save_if_due(step)
    saver.wait()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_job_may_go_on_without_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    Failing(monkeypatch, {10, 15, 25})
    with checkpointer(tmp_path, on_save_error="continue", mode=mode) as saver:
        run(saver, 31)
        assert saver.failed_saves == 3
    assert steps(tmp_path) == [5, 20, 30]
    assert "failed save 2 of 3" in caplog.text
    lines = [json.loads(line) for line in (tmp_path / "run" / "saves.jsonl").read_text().splitlines()]
    assert [line["outcome"] for line in lines].count("failed") == 3
    assert all("No space left" in line["problem"] for line in lines if line["outcome"] == "failed")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_but_not_without_many_in_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    Failing(monkeypatch, {10, 15, 20})
    with (
        pytest.raises(SaveError, match="saving step 15"),
        checkpointer(tmp_path, on_save_error="continue", max_failed_saves=2, mode=mode) as saver,
    ):
        run(saver, 31)
    assert steps(tmp_path) == [5]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_and_not_without_its_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    Failing(monkeypatch, {10})
    saver = checkpointer(tmp_path, on_save_error="continue", mode=mode)
    saver.total_steps = 10
    with pytest.raises(SaveError, match="saving step 10"), saver:
        run(saver, 10)


def test_an_earlier_failure_does_not_keep_the_last_step_from_being_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Failing(monkeypatch, {5})
    saver = checkpointer(tmp_path, on_save_error="continue", mode="async", period_steps=5)
    saver.total_steps = 6
    with saver:
        run(saver, 6)
    assert (steps(tmp_path), saver.failed_saves) == ([6], 1)


def test_nor_the_step_of_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Failing(monkeypatch, {5})
    with checkpointer(tmp_path, on_save_error="continue", mode="async") as saver:
        saver.save(5)
        saver._notice.noted = 15
        assert saver.save_if_due(6)
    assert steps(tmp_path) == [6]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_is_looked_for_is_what_all_ranks_will_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Not the main process's share times the ranks, and not what an earlier attempt with more state took."""
    monkeypatch.setattr(save_module, "free_bytes", lambda folder: int(1.5 * ONE))

    def save() -> int:
        task = nn.Linear(SIDE, SIDE) if forks.world.rank == 0 else nn.Linear(1, 1)
        torch.manual_seed(0)
        state = keepstep.JobState(model=nn.Linear(2, 2), task=keepstep.PerRank(task))
        config = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=5, mode=mode)
        with keepstep.Checkpointer(config, state, "run", world=forks.world, handle_signals=False) as saver:
            saver.resume()
            saver.save(5)
        return 5

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "saves.jsonl").write_text(
        '{"step": 1, "outcome": "saved", "seconds": 1.0, "bytes": 10000000000}\n'
    )
    assert forks.values(save, 2) == [5, 5]
    assert steps(tmp_path) == [5]


def test_a_name_that_could_not_be_made_durable_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = local.sync_folder

    def broken(path: Path) -> None:
        if path.name == "run" and (path / "save-10").exists():
            raise OSError(errno.EIO, "Input/output error", str(path))
        sync(path)

    with checkpointer(tmp_path, num_to_keep=1) as saver:
        saver.resume()
        saver.save(5)
        with monkeypatch.context() as patch:
            patch.setattr(local, "sync_folder", broken)
            with pytest.raises(SaveError, match="Input/output error"):
                saver.save(10)
        assert steps(tmp_path) == [5]
        saver.save(15)
    assert steps(tmp_path) == [15]


def test_a_folder_that_vanishes_is_an_error_with_its_name(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saver:
        saver.resume()
        saver.save(5)
        (tmp_path / "run").rename(tmp_path / "gone")
        with pytest.raises(KeepstepError, match="run is gone: it was moved, deleted or unmounted"):
            saver.save(10)
    assert steps(tmp_path.parent / tmp_path.name) == []


def test_space_that_is_missing() -> None:
    assert missing_bytes(100, 90) == 0
    assert missing_bytes(90, 100) == 10
    assert missing_bytes(None, 100) == 0


def test_what_earlier_attempts_took_is_known_again(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saver:
        saver.save(5)
    line = SaveLog(tmp_path / "run").last_saved()
    assert line["step"] == 5
    assert line["bytes"] > ONE
    with (tmp_path / "run" / "saves.jsonl").open("a") as file:
        file.write('{"step": 10, "outco')
    assert SaveLog(tmp_path / "run").last_saved() == line
    with checkpointer(tmp_path) as saver:
        saver.resume()
        assert saver._saver.expected_seconds == line["seconds"]
        saver.save(10)
    lines = (tmp_path / "run" / "saves.jsonl").read_text().splitlines()
    assert lines.pop(3) == '{"step": 10, "outco'
    outcomes = [(row["step"], row["outcome"]) for row in map(json.loads, lines)]
    assert outcomes[:3] == [(4, "started"), (5, "saved"), (5, "finished")]
    assert outcomes[3:] == [(5, "started"), (10, "saved"), (10, "finished")]
