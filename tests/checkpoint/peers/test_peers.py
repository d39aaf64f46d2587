"""Machines that each save to a folder of their own: one that is lost costs nothing."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from torch import nn

import keepstep
from keepstep.checkpoint.peers.hosts import HOST_VARIABLE
from keepstep.config.training import InferenceConfig
from tests.rig import forks, tiny
from tests.rig.machines import BATCH, Machines, without_start


def twin(tmp_path: Path, size: int, **more: Any) -> list[dict[str, Any]]:
    """The same job with one folder that all share, never stopped."""
    job = tiny.Tiny(str(tmp_path / "twin"), batch=BATCH, **more)
    return forks.values(lambda: tiny.train(job), size)


def die_at(last: int) -> Callable[[int], None]:
    """All machines go at this step."""

    def on_step(step: int) -> None:
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    return on_step


@pytest.mark.parametrize(
    ("sizes", "mode"),
    [
        ((2, 2), "sync"),
        ((1, 1, 1), "async"),
        pytest.param((2, 2), "async", marks=pytest.mark.crash),
        pytest.param((1, 1, 1), "sync", marks=pytest.mark.crash),
    ],
)
def test_a_wiped_machine_costs_nothing(tmp_path: Path, sizes: tuple[int, ...], mode: str) -> None:
    machines, names = Machines(tmp_path, sizes), "abc"[: len(sizes)]
    job = tiny.Tiny("", total=12, period=3, mode=mode)
    assert all(end.killed for end in machines.run(replace(job, on_step=die_at(11))))
    newest = min(machines.steps(name)[-1] for name in names)
    assert newest == 9 if mode == "sync" else newest >= 6
    machines.wipe("b")
    ended = machines.values(job)
    assert {one["start"] for one in ended} == {newest}
    assert without_start(ended) == without_start(twin(tmp_path, sum(sizes), total=12, period=3))
    assert {name: machines.steps(name) for name in names} == {name: [9, 12] for name in names}


def test_each_file_lies_on_two_machines_and_no_more(tmp_path: Path) -> None:
    machines = Machines(tmp_path, (1, 1, 1))
    machines.values(tiny.Tiny("", total=5))
    common = {".metadata", "run.json", "manifest.json"}
    for name, ranks in {"a": (0, 2), "b": (1, 0), "c": (2, 1)}.items():
        folder = machines.run_folder(name) / "save-5"
        own = {file for rank in ranks for file in (f"__{rank}_0.distcp", f"__{rank}.index")}
        assert {file.name for file in folder.iterdir()} == own | common
    texts = {(machines.run_folder(name) / "save-5" / "manifest.json").read_bytes() for name in "abc"}
    assert len(texts) == 1
    rows = [json.loads(line) for line in (machines.run_folder("a") / "saves.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["outcome"] == "saved"]
    sizes = [one["bytes"] for one in row["ranks"]]
    assert [one["copied_bytes"] for one in row["ranks"]] == [sizes[2], sizes[0], sizes[1]]


def test_a_step_that_is_saved_again_changes_places(tmp_path: Path) -> None:
    machines = Machines(tmp_path, (1, 1, 1))

    def work(step: int | None) -> tuple[int, float]:
        name = machines.name(forks.world.rank)
        os.environ[HOST_VARIABLE] = name
        model = nn.Linear(1, 1, bias=False)
        nn.init.constant_(model.weight, 1.0)
        config = keepstep.CheckpointingConfig(save_dir=str(tmp_path / name), period_steps=5, peer_copies=1)
        with keepstep.Checkpointer(config, keepstep.JobState(model=model), "tiny", world=forks.world) as saver:
            start = saver.resume(step)
            if not start:
                saver.save(5)
                saver.save(10)
                nn.init.constant_(model.weight, 2.0)
                saver.save(5)
            return start, model.weight.item()

    assert forks.values(lambda: work(None), 3) == [(0, 2.0)] * 3
    for name in "abc":
        assert not (machines.run_folder(name) / ".keepstep").exists()
    machines.wipe("c")
    assert forks.values(lambda: work(5), 3) == [(5, 2.0)] * 3


def test_a_job_of_a_file_refuses_them_as_yet(tmp_path: Path) -> None:
    values = {"save_dir": str(tmp_path), "period_steps": 5, "peer_copies": 1}
    with pytest.raises(ValidationError, match="jobs do not know it yet"):
        InferenceConfig.model_validate({"batching": {"global_batch_size": 4}, "checkpointing": values})


def test_a_job_that_never_saves_gives_the_folders_back(tmp_path: Path) -> None:
    machines = Machines(tmp_path, (1, 1))
    machines.values(tiny.Tiny("", total=5))
    machines.wipe("b")
    assert {one["start"] for one in machines.values(tiny.Tiny("", total=5, period="disable"))} == {5}
    assert machines.steps("b") == [5]
    for name in "ab":
        assert not (machines.run_folder(name) / ".keepstep").exists()
