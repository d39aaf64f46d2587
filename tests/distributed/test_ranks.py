"""Several ranks: one checkpoint, per-rank state per rank, one error everywhere, and exact resume."""

import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import keepstep
from keepstep.checkpoint import save as save_module
from keepstep.checkpoint import snapshot as snapshot_module
from keepstep.dcp.metadata import read_metadata, stored_keys
from keepstep.errors import (
    CheckpointNotFoundError,
    DamagedCheckpointError,
    ReplicaMismatchError,
    ResumeError,
    SaveError,
)
from keepstep.storage.survey import survey
from tests.rig import forks, tiny

Whole = tuple[list[Any], Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Whole]:
    """What so many ranks come to that nobody stops, and what they log."""

    @cache
    def train(ranks: int) -> Whole:
        folder = tmp_path_factory.mktemp("whole")
        job = tiny.Tiny(str(folder / "a"), total=12, period=1, log=str(folder / "a.log"))
        values = forks.values(lambda: tiny.train(job), ranks)
        assert [one.pop("start") for one in values] == [0] * ranks
        return values, tiny.read_log(job.log, ranks)

    return train


def twin(tmp_path: Path, whole: Callable[[int], Whole], ranks: int, stop: int) -> None:
    def until_the_crash() -> None:
        def crash(step: int) -> None:
            if step == stop + 1:
                os._exit(9)

        tiny.train(tiny.Tiny(str(tmp_path / "b"), total=12, period=1, log=str(tmp_path / "b.log"), on_step=crash))

    def again() -> dict[str, Any]:
        return tiny.train(tiny.Tiny(str(tmp_path / "b"), total=12, period=1, log=str(tmp_path / "b.log")))

    expected, log = whole(ranks)
    assert {end.status for end in forks.run(until_the_crash, ranks)} == {9}
    resumed = forks.values(again, ranks)
    assert [one.pop("start") for one in resumed] == [stop] * ranks
    assert resumed == expected
    assert tiny.read_log(str(tmp_path / "b.log"), ranks) == log
    if ranks > 1:
        assert resumed[0]["rng"] != resumed[1]["rng"]


@pytest.mark.parametrize(
    ("stop", "ranks"),
    [(1, 2), (6, 4), pytest.param(6, 2, marks=pytest.mark.slow), pytest.param(1, 4, marks=pytest.mark.slow)],
)
def test_a_resumed_run_is_the_run_that_was_started(
    tmp_path: Path, whole: Callable[[int], Whole], ranks: int, stop: int
) -> None:
    twin(tmp_path, whole, ranks, stop)


def test_every_rank_writes_its_own_shards_and_replicas_are_written_once(tmp_path: Path) -> None:
    forks.values(lambda: tiny.train(tiny.Tiny(str(tmp_path), total=5)), 2)
    folder = tmp_path / "tiny" / "save-5"
    names = {".metadata", "manifest.json", "run.json", "__0_0.distcp", "__0.index", "__1_0.distcp", "__1.index"}
    assert set(os.listdir(folder)) == names
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["files"]) == names - {"manifest.json"}
    assert manifest["world_size"] == 2
    sizes = [manifest["files"][f"__{rank}_0.distcp"]["size"] for rank in (0, 1)]
    assert min(sizes) > max(sizes) / 3  # the work is shared
    keys = stored_keys(read_metadata(folder))
    assert {"data.dp_0.samples", "data.dp_1.samples", "rng.rank_0", "rng.rank_1"} <= set(keys)


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def checkpointer(folder: Path, **parts: Any) -> keepstep.Checkpointer:
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=5)
    return keepstep.Checkpointer(config, keepstep.JobState(**parts), world=forks.world)


@pytest.mark.parametrize("part", ["task", "metrics", "tracker", "lr_scheduler"])
def test_what_belongs_to_a_rank_comes_back_to_its_rank(tmp_path: Path, part: str) -> None:
    def work() -> tuple[Any, Any]:
        rank = forks.world.rank
        value = {"counter": rank, "tensor": torch.full((2,), float(rank)), "list": [rank] * rank}
        with checkpointer(tmp_path, **{part: keepstep.PerRank(Holder(value))}) as saver:
            saver.save(5)
        other = Holder(None)
        with checkpointer(tmp_path, **{part: keepstep.PerRank(other)}) as loader:
            loader.resume()
        return repr(value), repr(other.value)

    results = forks.values(work, 4)
    assert [back for _, back in results] == [value for value, _ in results]
    assert len({value for value, _ in results}) == 4


@pytest.mark.parametrize("value", ["python", "tensor", "parameter", "moment"])
def test_a_replica_that_differs_is_an_error_that_names_the_ranks(tmp_path: Path, value: str) -> None:
    def work() -> str:
        odd = float(forks.world.rank == 2)
        model = nn.Linear(2, 2, bias=False)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            if value == "parameter":
                model.weight[0, 0] += odd
            if value == "moment":
                optimizer.state[model.weight]["exp_avg"] += odd
        task = Holder({"python": [1, odd if value == "python" else 0.0]}["python"])
        if value == "tensor":
            task.value = torch.tensor([odd])
        try:
            checkpointer(tmp_path, model=model, optimizer=optimizer, task=task).save(5)
        except ReplicaMismatchError as error:
            return str(error)
        return "saved"

    messages = forks.values(work, 4)
    assert len(set(messages)) == 1
    key = {"parameter": "model.weight", "moment": "optimizer.state.weight.exp_avg"}.get(value, "task.value")
    assert f"{key} (one value on ranks 0, 1, 3, another on 2)" in messages[0]
    assert not (tmp_path / "save-5").exists()
    assert survey(tmp_path).leftovers == ()


def test_of_a_tracker_the_main_process_counts(tmp_path: Path) -> None:
    def work() -> Any:
        with checkpointer(tmp_path, tracker=Holder(f"run of {forks.world.rank}")) as saver:
            saver.save(5)
        tracker = Holder(None)
        with checkpointer(tmp_path, tracker=tracker) as loader:
            loader.resume()
        return tracker.value

    assert forks.values(work, 3) == ["run of 0"] * 3


@pytest.mark.parametrize(
    ("phase", "ranks"),
    [
        *((phase, (0, 1, 3)) for phase in ("snapshot.collect", "snapshot.pickle_trees", "save.write_shard")),
        *((phase, (0,)) for phase in ("save._commit", "save.prepare", "save.publish")),
    ],
)
def test_one_rank_fails_and_all_raise_the_same_error(tmp_path: Path, ranks: tuple[int, ...], phase: str) -> None:
    def fail(rank: int) -> tuple[str, int, list[int]]:
        folder = tmp_path / str(rank)
        saver = checkpointer(folder, model=nn.Linear(2, 2))
        saver.save(5)
        name, function = phase.split(".")
        module = {"save": save_module, "snapshot": snapshot_module}[name]
        original = getattr(module, function)

        def broken(*arguments: Any, **options: Any) -> Any:
            if forks.world.rank == rank:
                raise OSError(5, "Input/output error")
            return original(*arguments, **options)

        setattr(module, function, broken)
        try:
            saver.save(10)
        except SaveError as error:
            message, failed = str(error), error.rank
        setattr(module, function, original)
        dist.barrier()
        between = [c.found.step for c in survey(folder).complete]
        dist.barrier()
        saver.save(15)
        return message, failed, between

    results = forks.values(lambda: [fail(rank) for rank in ranks], 4, seconds=30)
    assert len(set(map(str, results))) == 1
    for rank, (message, failed, between) in zip(ranks, results[0], strict=True):
        assert failed == rank
        assert f"on rank {rank} of 4" in message
        assert "Input/output error" in message
        assert between == [5]
        assert [c.found.step for c in survey(tmp_path / str(rank)).complete] == [5, 15]
        assert survey(tmp_path / str(rank)).leftovers == ()


def test_ranks_that_see_other_folders_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepstep.checkpoint.resume._RETRY_SECONDS", 0.05)  # nothing comes late here
    forks.values(lambda: tiny.train(tiny.Tiny(str(tmp_path / "n0"), total=5)), 2)

    def work() -> str:
        try:
            tiny.train(tiny.Tiny(str(tmp_path / f"n{forks.world.rank // 2}"), total=10))
        except ResumeError as error:
            return str(error)
        return "resumed"

    messages = forks.values(work, 4)
    assert len({message.replace("n1", "n0") for message in messages}) == 1
    assert "rank 0" in messages[0]
    assert "save-5 complete" in messages[0]
    assert "rank 2" in messages[0]
    assert "file system that all ranks share" in messages[0]


def test_ranks_at_different_steps_do_not_save(tmp_path: Path) -> None:
    def work() -> str:
        try:
            checkpointer(tmp_path, model=nn.Linear(1, 1)).save(5 + forks.world.rank)
        except SaveError as error:
            return str(error)
        return "saved"

    assert set(forks.values(work, 2)) == {"the ranks want to save different steps (rank 0: 5, rank 1: 6)"}


def test_a_missing_step_and_damage_are_errors_on_all_ranks(tmp_path: Path) -> None:
    forks.values(lambda: tiny.train(tiny.Tiny(str(tmp_path), total=10)), 2)

    def work(step: int | None) -> str:
        try:
            tiny.train(tiny.Tiny(str(tmp_path), total=15, resume_step=step))
        except (CheckpointNotFoundError, DamagedCheckpointError) as error:
            return type(error).__name__ + str(error)
        return "resumed"

    messages = forks.values(lambda: work(7), 2)
    assert messages[0] == messages[1]
    assert "step 7 was asked for" in messages[0]
    for step in (5, 10):
        shard = tmp_path / "tiny" / f"save-{step}" / "__1_0.distcp"
        shard.write_bytes(bytes(shard.stat().st_size))
    messages = forks.values(lambda: work(None), 2)
    assert messages[0] == messages[1]
    assert "nothing good is left" in messages[0]


def test_a_stop_request_of_one_rank_is_agreed_on_by_all(tmp_path: Path) -> None:
    def work() -> Any:
        def on_step(step: int) -> None:
            if step == 3 and forks.world.rank == 1:
                os.kill(os.getpid(), 15)

        try:
            tiny.train(tiny.Tiny(str(tmp_path), total=10, on_step=on_step))
        except keepstep.StopRequested as stop:
            return str(stop)
        return "finished"

    assert forks.values(work, 2) == ["stopped at 3"] * 2
    assert [c.found.step for c in survey(tmp_path / "tiny").complete] == [3]


def test_another_number_of_ranks_goes_on_in_the_same_order(tmp_path: Path) -> None:
    # 12 samples a step, which 1, 2, 3 and 4 ranks divide.
    def job(name: str, total: int) -> dict[str, Any]:
        return tiny.train(tiny.Tiny(str(tmp_path / name), total=total, batch=12, log=str(tmp_path / f"{name}.log")))

    forks.values(lambda: (job("a", 10), job("b", 5)), 2)
    whole = tiny.read_log(str(tmp_path / "a.log"))[0]
    for ranks in (1, 3, 4):
        name = f"b{ranks}"
        shutil.copytree(tmp_path / "b", tmp_path / name)
        shutil.copy(tmp_path / "b.log.0", tmp_path / f"{name}.log.0")
        ended = forks.values(lambda at=name: job(at, 10), ranks)
        assert [one["start"] for one in ended] == [5] * ranks
        assert len({str(one["rng"]) for one in ended}) == ranks
        resumed = tiny.read_log(str(tmp_path / f"{name}.log"))[0]
        assert {step: row[1] for step, row in resumed.items()} == {step: row[1] for step, row in whole.items()}


def test_buffers_that_differ_between_replicas_come_back_to_their_rank(tmp_path: Path) -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    def save() -> list[float]:
        model = build()
        replica = nn.parallel.DistributedDataParallel(model)
        replica(torch.full((2, 3), float(forks.world.rank)) + torch.randn(2, 3))
        checkpointer(tmp_path, model=replica).save(5)
        return model[1].running_mean.tolist()

    def load() -> list[float]:
        model = build()
        assert checkpointer(tmp_path, model=model).resume() == 5
        return model[1].running_mean.tolist()

    saved = forks.values(save, 3)
    assert len(set(map(str, saved))) > 1
    assert forks.values(load, 3) == saved
    assert forks.values(load, 2) == saved[:2]
    assert forks.values(load, 4) == [*saved, saved[0]]
    keys = set(stored_keys(read_metadata(tmp_path / "save-5")))
    assert {"model.1.running_mean", "buffers.rank_2.model.1.running_mean"} <= keys
    assert "buffers.rank_2.model.1.num_batches_tracked" not in keys  # it is the same everywhere


def test_a_run_record_that_cannot_be_written_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    def work() -> str:
        config = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=5)
        facts = keepstep.RunFacts(config={"x": object()} if forks.world.rank == 0 else {})
        state = keepstep.JobState(model=nn.Linear(1, 1))
        try:
            keepstep.Checkpointer(config, state, facts=facts, world=forks.world).save(5)
        except SaveError as error:
            return str(error)
        return "saved"

    messages = forks.values(work, 2, seconds=20)
    assert messages[0] == messages[1]
    assert "collecting the run record failed on rank 0" in messages[0]
