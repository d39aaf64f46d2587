"""A plan serves as long as nothing but values changes, and no longer."""

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import keepstep
from keepstep.checkpoint import snapshot as snapshot_module
from keepstep.dcp import plan as plan_module
from keepstep.dcp.metadata import read_metadata, stored_keys
from keepstep.dcp.reader import read
from keepstep.dist.world import World
from tests.rig import forks


class Value:
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def checkpointer(folder: Path, mode: str = "sync", **parts: Any) -> keepstep.Checkpointer:
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=1, mode=mode)
    return keepstep.Checkpointer(config, keepstep.JobState(**parts), world=forks.world, handle_signals=False)


def content(folder: Path) -> dict[str, Any]:
    keys = stored_keys(read_metadata(folder))
    tensors = {key: torch.empty(s.shape, dtype=s.dtype) for key, s in keys.items() if s.is_tensor}
    return {**tensors, **read(folder, tensors, [key for key, s in keys.items() if not s.is_tensor])}


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each plan that is made."""
    made: list[int] = []
    real = plan_module.make_plan

    def make_plan(entries: Any, world: World, phase: str) -> Any:
        made.append(len(entries))
        return real(entries, world, phase)

    monkeypatch.setattr(snapshot_module, "make_plan", make_plan)
    return made


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_one_plan_serves_many_saves(tmp_path: Path, plans: list[int], mode: str) -> None:
    model, task = nn.Linear(300, 300), Value({"count": 0, "text": ""})
    with checkpointer(tmp_path, mode, model=model, task=task) as saver:
        for step in range(1, 8):
            task.state["count"] = 10 ** (step - 1)
            model.weight.data.fill_(step)
            saver.save(step)
            saver.wait()
    assert len(plans) == 1
    metadata = [(tmp_path / f"save-{step}" / ".metadata").read_bytes() for step in range(1, 8)]
    assert len(set(metadata)) == 1
    for step in range(1, 8):
        found = content(tmp_path / f"save-{step}")
        assert found["task.count"] == 10 ** (step - 1)
        assert found["model.weight"].unique().tolist() == [step]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_value_that_outgrows_its_slot_moves_the_file_and_nothing_else(
    tmp_path: Path, plans: list[int], mode: str
) -> None:
    model, task = nn.Linear(300, 300), Value({"text": "x"})
    with checkpointer(tmp_path, mode, model=model, task=task) as saver:
        for step, length in enumerate((1, 10, 200_000, 5, 400_000), 1):
            task.state["text"] = "y" * length
            saver.save(step)
            saver.wait()
            found = content(tmp_path / f"save-{step}")
            assert found["task.text"] == "y" * length
            assert torch.equal(found["model.weight"], model.weight)
    assert len(plans) == 1


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("change", ["shape", "dtype", "name", "new", "gone", "kind"])
def test_whatever_else_changes_makes_a_new_plan(tmp_path: Path, plans: list[int], mode: str, change: str) -> None:
    model = nn.ParameterDict({"a": nn.Parameter(torch.ones(300, 300)), "b": nn.Parameter(torch.ones(3))})
    task = Value({"value": 1})
    with checkpointer(tmp_path, mode, model=model, task=task) as saver:
        saver.save(1)
        match change:
            case "shape":
                model["a"] = nn.Parameter(torch.full((200, 400), 2.0))
            case "dtype":
                model["a"] = nn.Parameter(torch.full((300, 300), 2.0, dtype=torch.bfloat16))
            case "name":
                model["c"] = model.pop("a")
            case "new":
                model["c"] = nn.Parameter(torch.full((500, 300), 2.0))
            case "gone":
                del model["a"]
            case "kind":
                task.state["value"] = torch.ones(2)
        saver.save(2)
        saver.save(3)
    assert len(plans) == 2
    for step in (2, 3):
        found = content(tmp_path / f"save-{step}")
        for name, value in model.items():
            assert torch.equal(found[f"model.{name}"], value)
        names = {key.removeprefix("model.") for key in found if key.startswith("model.")}
        assert {name for name in names if not name.startswith("_")} == set(model.keys())


def test_two_checkpointers_in_one_process_do_not_share_a_plan(tmp_path: Path) -> None:
    models = [nn.Linear(300, 300), nn.Linear(300, 300)]
    with (
        checkpointer(tmp_path / "a", "async", model=models[0]) as first,
        checkpointer(tmp_path / "b", "sync", model=models[1]) as second,
    ):
        for step in range(1, 5):
            for number, model in enumerate(models):
                model.weight.data.fill_(10 * number + step)
            first.save(step)
            second.save(step)
    for step in range(1, 5):
        for number, run in enumerate("ab"):
            found = content(tmp_path / run / f"save-{step}")
            assert found["model.weight"].unique().tolist() == [10 * number + step]


def test_in_steady_state_the_ranks_exchange_nothing_but_success(tmp_path: Path) -> None:
    """No list of what a rank holds, no metadata: some hundred bytes a save, whatever the number of tensors."""

    class Counting:
        """Counts the bytes that a rank tells the others."""

        def __init__(self, world: World) -> None:
            self._world, self.sent = world, 0

        def __getattr__(self, name: str) -> Any:
            value = getattr(self._world, name)
            if name not in ("gather", "broadcast", "to_main", "from_main"):
                return value

            def call(message: Any) -> Any:
                import pickle

                self.sent += len(pickle.dumps(message))
                return value(message)

            return call

    def work() -> list[int]:
        torch.manual_seed(0)
        model = nn.ParameterList(nn.Parameter(torch.ones(40, 8)) for _ in range(200))
        fully_shard(model)
        world: Any = Counting(forks.world)
        config = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=1)
        sent = []
        with keepstep.Checkpointer(config, keepstep.JobState(model=model), world=world, handle_signals=False) as saver:
            for step in range(1, 5):
                before = world.sent
                saver.save(step)
                sent.append(world.sent - before)
        return sent

    for first, *others in forks.values(work, 4):
        assert first > 8000
        assert all(other < 1500 for other in others)
    assert content(tmp_path / "save-4")["model.199"].shape == (40, 8)


def test_a_failed_save_does_not_leave_the_main_process_with_half_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from keepstep.checkpoint import save as save_module

    def broken(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error")

    with checkpointer(tmp_path, model=nn.Linear(300, 300)) as saver:
        for phase in ("write_shard", "_commit"):
            with monkeypatch.context() as patch:
                patch.setattr(save_module, phase, broken)
                with pytest.raises(keepstep.SaveError):
                    saver.save(1)
            saver.save(2 if phase == "write_shard" else 3)
    for step in (2, 3):
        assert content(tmp_path / f"save-{step}")["step"] == step


def test_what_a_save_did_is_on_record(tmp_path: Path) -> None:
    def work() -> None:
        with checkpointer(tmp_path, model=nn.Linear(300, 300)) as saver:
            saver.save(1)

    forks.values(work, 2)
    lines = [json.loads(line) for line in (tmp_path / "saves.jsonl").read_text().splitlines()]
    (line,) = [line for line in lines if line["outcome"] == "saved"]
    assert (line["step"], line["attempt"], line["outcome"], line["mode"]) == (1, 1, "saved", "sync")
    assert len(line["ranks"]) == 2
    for rank in line["ranks"]:
        assert {"host", "bytes", "snapshot", "write", "sync", "index"} == rank.keys()
        assert all(rank[part] >= 0 for part in ("snapshot", "write", "sync", "index"))
    sizes = [path.stat().st_size for path in (tmp_path / "save-1").glob("__*")]
    assert line["bytes"] == sum(sizes)
    assert line["slowest_rank"] in (0, 1)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_many_small_tensors_need_few_descriptors(tmp_path: Path, mode: str) -> None:
    def work() -> list[float]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        model = nn.ParameterList(nn.Parameter(torch.full((3,), float(number))) for number in range(3000))
        with checkpointer(tmp_path, mode, model=model) as saver:
            for step in range(1, 4):
                saver.save(step)
            with torch.no_grad():
                for parameter in model:
                    parameter.zero_()
            assert saver.resume() == 3
        return [parameter[0].item() for parameter in model]

    assert forks.values(work) == [[float(number) for number in range(3000)]]
