"""The save path on one process: what it leaves, also when it fails."""

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import keepstep
from keepstep.checkpoint import save as save_module
from keepstep.errors import SaveError, UnsupportedStateError
from keepstep.ops.listing import list_folder
from keepstep.ops.pin import pin_checkpoint
from keepstep.plan.resume import Condition
from keepstep.storage import deletion, local
from keepstep.storage.survey import survey
from tests.rig import tiny
from tests.rig.folders import make_checkpoint, names


def checkpointer(tmp_path: Path, keep: int | None = None, period: Any = 5, **parts: Any) -> keepstep.Checkpointer:
    parts = parts or {"model": nn.Linear(2, 2)}
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=period, num_to_keep=keep)
    return keepstep.Checkpointer(config, keepstep.JobState(**parts), run_name="run", total_steps=20)


def steps(tmp_path: Path) -> list[int]:
    return [c.found.step for c in survey(tmp_path / "run").complete]


def test_a_checkpoint_holds_the_files_of_the_design_and_nothing_of_the_machine(tmp_path: Path) -> None:
    tiny.train(tiny.Tiny(str(tmp_path), total=5))
    folder = tmp_path / "tiny" / "save-5"
    assert sorted(os.listdir(folder)) == [".metadata", "__0.index", "__0_0.distcp", "manifest.json", "run.json"]
    assert sorted(os.listdir(tmp_path / "tiny")) == ["save-5", "saves.jsonl"]
    for file in folder.iterdir():
        assert str(tmp_path).encode() not in file.read_bytes()


def test_the_keys_are_those_of_the_design(tmp_path: Path) -> None:
    tiny.train(tiny.Tiny(str(tmp_path), total=5))
    keys = set(pickle.loads((tmp_path / "tiny" / "save-5" / ".metadata").read_bytes()).state_dict_metadata)
    assert {k for k in keys if k.startswith("model.")} == {
        "model.0.weight",
        "model.0.bias",
        "model.3.weight",
        "model.3.bias",
    }
    assert {k for k in keys if k.startswith("optimizer.state.0.weight.")} == {
        f"optimizer.state.0.weight.{slot}" for slot in ("step", "exp_avg", "exp_avg_sq")
    }
    assert {"optimizer.param_groups.3.bias.lr", "optimizer.param_groups.3.bias.betas"} <= keys
    expected = {
        "step",
        "lr_scheduler.completed_steps",
        "data.dp_0.samples",
        "task.count",
        "task.last",
        "task.sum",
        "rng.rank_0",
    }
    assert expected <= keys
    known = r"step|(model|optimizer|lr_scheduler|task)\..*|data\.dp_0\..*|rng\.rank_0"
    assert all(re.fullmatch(known, key) for key in keys)


def test_plain_dcp_reads_it_without_keepstep(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    with checkpointer(tmp_path, model=model, optimizer=optimizer) as saver:
        saver.save(7)
    torch.save((model.state_dict(), [optimizer.state[p] for p in model.parameters()]), tmp_path / "expected.pt")
    script = """
import sys, torch, torch.distributed.checkpoint as dcp
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
names = [name for name, _ in model.named_parameters()]
slots = {n: {s: torch.zeros_like(p) for s in ("exp_avg", "exp_avg_sq")} for n, p in model.named_parameters()}
state = {"model": model.state_dict(), "optimizer": {"state": slots}, "step": torch.tensor(0)}
dcp.load(state, checkpoint_id=sys.argv[1])
weights, moments = torch.load(sys.argv[2], weights_only=False)
assert state["step"] == 7
assert all(torch.equal(state["model"][k], v) for k, v in weights.items()) and len(weights) == 7
assert all(torch.equal(slots[n][s], m[s]) for n, m in zip(names, moments) for s in slots[n])
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save(sys.argv[1], sys.argv[2] + ".plain")
plain = torch.load(sys.argv[2] + ".plain", weights_only=False)
assert torch.equal(plain["model"]["0.weight"], weights["0.weight"]), plain.keys()
assert plain["optimizer"]["param_groups.0.weight.lr"] == 1e-3
assert not any(name.startswith("keepstep") for name in sys.modules)
print("equal")
"""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        script,
        str(tmp_path / "run" / "save-7"),
        str(tmp_path / "expected.pt"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}, check=False)
    assert done.stdout == "equal\n", done.stderr


def test_a_folder_written_by_plain_dcp_is_foreign(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"a": torch.ones(1)}, checkpoint_id=tmp_path / "run" / "save-10", no_dist=True)
    assert [c.found.condition for c in survey(tmp_path / "run").checkpoints] == [Condition.INCOMPLETE]


def test_run_json_identifies_the_checkpoint(tmp_path: Path) -> None:
    facts = keepstep.RunFacts("run", config={"a": 1}, seed=3, base_model="base", global_batch_size=8)
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=5)
    with keepstep.Checkpointer(config, keepstep.JobState(model=nn.Linear(1, 1)), "run", facts=facts) as saver:
        saver.save(5)
        saver.save(10)
    record = json.loads((tmp_path / "run" / "save-10" / "run.json").read_text())
    assert list(record)[:4] == ["step", "attempt", "parent_step", "created_at"]
    expected = {
        "step": 10,
        "attempt": 1,
        "parent_step": 5,
        "run": "run",
        "seed": 3,
        "base_model": "base",
        "world_size": 1,
    }
    assert expected.items() <= record.items()
    assert record["torch"] == torch.__version__
    assert record["config"] == {"a": 1}
    assert re.fullmatch(r"[0-9a-f]{64}", record["config_sha256"])


def test_only_num_to_keep_remain_and_foreign_content_stays(tmp_path: Path) -> None:
    (tmp_path / "run" / "save-1.bak").mkdir(parents=True)
    (tmp_path / "run" / "save-2").mkdir()
    with checkpointer(tmp_path, keep=2) as saver:
        for step in (5, 10, 15, 20):
            saver.save(step)
    assert steps(tmp_path) == [15, 20]
    assert {"save-1.bak", "save-2"} <= set(os.listdir(tmp_path / "run"))


def test_a_delete_that_fails_warns_and_the_next_save_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with checkpointer(tmp_path, keep=1) as saver:
        saver.save(5)

        def busy(path: Path) -> None:
            if ".del-" in path.name:
                raise OSError(16, "Device or resource busy", str(path))
            local.remove_tree(path)

        with monkeypatch.context() as patch:
            patch.setattr(deletion, "remove_tree", busy)
            saver.save(10)
        assert "could not delete" in caplog.text
        assert steps(tmp_path) == [10]  # half deleted or not, it is no checkpoint any more
        assert survey(tmp_path / "run").leftovers == (".save-5.del-1",)
        saver.save(15)
    assert steps(tmp_path) == [15]
    assert survey(tmp_path / "run").leftovers == ()


def test_the_same_step_is_saved_once(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saver:
        assert saver.save(5)
        before = (tmp_path / "run" / "save-5").stat().st_ino
        assert not saver.save(5)
    assert (tmp_path / "run" / "save-5").stat().st_ino == before


def test_a_committed_step_of_an_earlier_attempt_is_replaced_whole(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with checkpointer(tmp_path, model=model) as saver:
        saver.save(5)
        saver.save(10)
    with torch.no_grad():
        model.weight.fill_(7)
    with checkpointer(tmp_path, model=model) as saver:
        saver.save(10)
    other = nn.Linear(2, 2)
    with checkpointer(tmp_path, model=other) as loader:
        assert loader.resume() == 10
    assert torch.equal(other.weight, torch.full((2, 2), 7.0))
    assert survey(tmp_path / "run").leftovers == ()
    assert json.loads((tmp_path / "run" / "save-10" / "manifest.json").read_text())["attempt"] == 2


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_no_checkpoint_and_has_its_name_is_set_aside_and_kept(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "run" / "save-5"
    target.parent.mkdir()
    match kind:
        case "folder":
            target.mkdir()
            (target / "precious").write_text("mine")
        case "file":
            target.write_text("mine")
        case "link":
            target.symlink_to(tmp_path)
    with checkpointer(tmp_path) as saver:
        saver.save(5)
    assert steps(tmp_path) == [5]
    aside = tmp_path / "run" / ".keepstep" / "set-aside" / "save-5-1"
    content = {"folder": lambda: (aside / "precious").read_text(), "file": aside.read_text, "link": lambda: "mine"}
    assert os.path.lexists(aside)
    assert content[kind]() == "mine"


@pytest.mark.parametrize("resumes", [True, False])
def test_a_pinned_checkpoint_whose_name_is_needed_is_kept_with_its_pin(tmp_path: Path, resumes: bool) -> None:
    """A job went on from an earlier step, or looked for none: either way the pin is not the new checkpoint's."""
    run = tmp_path / "run"
    for step in (2, 5):
        make_checkpoint(run, step)
    before = (run / "save-5" / "manifest.json").read_bytes()
    pin_checkpoint(run / "save-5", "sent")
    with checkpointer(tmp_path) as saver:
        if resumes:
            saver._resumed, saver._last_step = True, 2
        saver.save(5)
    assert (run / ".keepstep" / "set-aside" / "save-5-2" / "manifest.json").read_bytes() == before
    listed = list_folder(run).checkpoints[-1]
    assert (listed.step, listed.attempt, listed.pinned, listed.has_other_pin) == (5, 2, False, True)


def test_leftovers_of_earlier_attempts_go_and_mix_with_nothing(tmp_path: Path) -> None:
    stale = tmp_path / "run" / ".save-5.tmp-1"
    stale.mkdir(parents=True)
    (stale / "__3_0.distcp").write_text("old shard")
    with checkpointer(tmp_path) as saver:
        saver.save(5)
    assert names(tmp_path / "run") == ["save-5", "saves.jsonl"]
    manifest = json.loads((tmp_path / "run" / "save-5" / "manifest.json").read_text())
    assert manifest["attempt"] == 2
    assert "__3_0.distcp" not in manifest["files"]


@pytest.mark.parametrize("period", ["disable"])
def test_disabled_never_saves(tmp_path: Path, period: Any) -> None:
    with checkpointer(tmp_path, period=period) as saver:
        assert not any(saver.save_if_due(step) for step in range(1, 21))
        assert not saver.save(20)
    assert names(tmp_path) == []


class TestFailures:
    """Whatever fails: nothing committed, no trace, earlier checkpoints untouched, and the next save works."""

    def failing_save(self, tmp_path: Path, saver: keepstep.Checkpointer) -> SaveError:
        with pytest.raises(SaveError) as caught:
            saver.save(10)
        assert steps(tmp_path) == [5]
        assert names(tmp_path / "run") == ["save-5", "saves.jsonl"]
        return caught.value

    @pytest.mark.parametrize("nth", range(1, 7))
    def test_the_disk_is_full_at_the_nth_write(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
        with checkpointer(tmp_path) as saver:
            saver.save(5)
            calls = 0
            write, pwrite = os.write, os.pwrite

            def count() -> None:
                nonlocal calls
                calls += 1
                if calls == nth:
                    raise OSError(28, "No space left on device")

            def full(descriptor: int, data: Any) -> int:
                count()
                return write(descriptor, data)

            def full_at(descriptor: int, data: Any, offset: int) -> int:
                count()
                return pwrite(descriptor, data, offset)

            with monkeypatch.context() as patch:
                patch.setattr(local.os, "write", full)
                patch.setattr(local.os, "pwrite", full_at)
                if nth > 5:  # a save of this size makes five writes
                    assert saver.save(10)
                    assert calls == 5
                    return
                error = self.failing_save(tmp_path, saver)
            assert "No space left on device" in str(error)
            assert str(tmp_path / "run" / "save-10") in str(error)
            assert saver.save(15)
        assert steps(tmp_path) == [5, 15]

    @pytest.mark.parametrize("step_of_save", ["write_file", "write_shard", "publish", "record_text", "sync_folder"])
    def test_any_step_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_of_save: str) -> None:
        with checkpointer(tmp_path) as saver:
            saver.save(5)

            def broken(*_: object, **__: object) -> None:
                raise OSError(5, "Input/output error")

            with monkeypatch.context() as patch:
                patch.setattr(save_module, step_of_save, broken)
                self.failing_save(tmp_path, saver)
            assert saver.save(15)

    def test_state_that_cannot_be_stored_is_named(self, tmp_path: Path) -> None:
        class Task:
            def __init__(self) -> None:
                self.state: dict[str, Any] = {"good": 1}

            def state_dict(self) -> dict[str, Any]:
                return self.state

            def load_state_dict(self, state: dict[str, Any]) -> None:
                self.state = state

        task = Task()
        with checkpointer(tmp_path, task=task) as saver:
            saver.save(5)
            task.state["bad"] = {"list": [object()]}
            with pytest.raises(UnsupportedStateError, match=r"task\.bad\.list\.0 is a builtins\.object"):
                saver.save(10)
        assert names(tmp_path / "run") == ["save-5", "saves.jsonl"]


def test_saving_draws_no_random_number_and_changes_nothing(tmp_path: Path) -> None:
    parts = tiny.build()
    parts["optimizer"].zero_grad()
    before = tiny.final_state(parts)
    with checkpointer(tmp_path, **parts) as saver:
        saver.save(5)
    assert tiny.final_state(parts) == before
