"""Each thing that identifies a run is changed in turn: the right policy, message and exit code, and nothing touched."""

import json
import logging
import re
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from keepstep.errors import GuardRefusedError
from keepstep.job.asked import Asked
from keepstep.job.can_resume import can_resume
from keepstep.job.train import TrainingJob
from tests.rig import forks, guarded, jobs

ROWS = guarded.Content().rows


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    guarded.change()
    yield
    guarded.change()


def start(folder: Path, total: int = 8, accept: tuple[str, ...] = (), **trainer: Any) -> None:
    TrainingJob(guarded.training(folder, total, **trainer)).run(asked=Asked(accept=accept))


def record(folder: Path, step: int) -> dict[str, Any]:
    found = json.loads((folder / "checkpoints" / "run" / f"save-{step}" / "run.json").read_text())
    assert isinstance(found, dict)
    return found


def begun(folder: Path, **trainer: Any) -> Path:
    """A run of 4 steps that is to go on to 8."""
    start(folder, 4, **trainer)
    guarded.change()
    return folder


def base(folder: Path, change: float = 0.0) -> dict[str, Any]:
    torch.manual_seed(1)
    weights = jobs.Net().state_dict()
    weights["base.bias"][0] += change
    (folder / "base").mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "base" / "model.safetensors")
    return {"model_stage_factory": {"source_checkpoint": str(folder / "base")}}


DATA = {
    "a row inserted": (b"\xff" * 8, *ROWS),
    "a row removed": ROWS[1:],
    "two rows swapped": (ROWS[1], ROWS[0], *ROWS[2:]),
    "one byte edited": (ROWS[0][:-1] + b"\x01", *ROWS[1:]),
    "shuffled with another seed": tuple(
        ROWS[i] for i in torch.randperm(20, generator=torch.Generator().manual_seed(3))
    ),
}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    **{f"data: {name}": ({"rows": rows}, {}, "dataset_sha256") for name, rows in DATA.items()},
    "tokenizer": ({"words": ("a", "c")}, {}, "tokenizer_sha256"),
    "seed": ({}, {"determinism": {"base_seed": 8}}, "seed"),
    "batch": ({}, {"batching": {"global_batch_size": 2, "microbatch_size": 1}}, "global_batch_size"),
    "no shuffle": ({}, {"data": {"shuffle": False}}, "config.trainer.data.shuffle"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_make_it_another_run_is_refused_before_anything(tmp_path: Path, name: str) -> None:
    content, trainer, field = REFUSED[name]
    folder = begun(tmp_path)
    before = jobs.tree_digest(folder)
    guarded.change(**content)
    with pytest.raises(GuardRefusedError, match=rf"\n{field} .* refuse ") as caught:
        start(folder, **trainer)
    assert caught.value.exit_code == 3
    assert guarded.now.loaded == []
    assert jobs.tree_digest(folder) == before
    outlook = can_resume(guarded.training(folder, 8, **trainer), 1)
    assert (outlook.outcome, outlook.exit_code, outlook.problem) == ("refused", 3, str(caught.value))
    # What the message says to do goes on, from the same step, and is told later.
    (flag,) = re.findall(r"--accept (\S+)", str(caught.value))
    assert can_resume(guarded.training(folder, 8, **trainer), 1, Asked(accept=(flag,))).outcome == "resume"
    assert jobs.tree_digest(folder) == before
    start(folder, 8, (flag,), **trainer)
    (accepted,) = [one for one in record(folder, 8)["accepted"] if one["field"] == field]
    assert (accepted["policy"], accepted["from_step"], f"{field}={accepted['now']}") == ("accept", 4, flag)


def test_base_weights_that_were_edited_are_refused_and_other_revisions_are_pinned(tmp_path: Path) -> None:
    def at(revision: str, change: float = 0.0) -> dict[str, Any]:
        folder = tmp_path / "models--me--base" / "snapshots" / revision
        factory = base(folder, change)["model_stage_factory"]
        return {"model_stage_factory": factory}

    folder = begun(tmp_path / "run", **at("aaaaaaa1"))
    assert record(folder, 4)["base_revision"] == "aaaaaaa1"
    with pytest.raises(GuardRefusedError, match=r"base_weights .* refuse"):
        start(folder, **at("bbbbbbb2", 1e-3))
    start(folder, **at("ccccccc3"))
    found = record(folder, 8)
    assert found["base_revision"] == "aaaaaaa1"
    assert [(one["field"], one["policy"]) for one in found["accepted"]][:1] == [("base_revision", "warn")]


def test_base_weights_that_are_gone_are_not_needed_by_a_whole_checkpoint_and_stay_its_identity(tmp_path: Path) -> None:
    source = base(tmp_path)
    folder = begun(tmp_path / "run", **source)
    (tmp_path / "base" / "model.safetensors").unlink()
    (tmp_path / "base").rmdir()
    start(folder, **source)
    assert record(folder, 8)["base_weights"] == record(folder, 4)["base_weights"] is not None


def test_a_folder_of_base_weights_that_is_empty_now_is_as_good_as_none(tmp_path: Path) -> None:
    source = base(tmp_path)
    folder = begun(tmp_path / "run", **source)
    (tmp_path / "base" / "model.safetensors").unlink()
    start(folder, **source)
    assert record(folder, 8)["base_weights"] == record(folder, 4)["base_weights"] is not None


WARNED: dict[str, tuple[dict[str, Any], str]] = {
    "micro-batch": (
        {"batching": {"global_batch_size": 4, "microbatch_size": 2}},
        "config.trainer.batching.microbatch_size",
    ),
    "weight decay": ({"optimizer": {"lr": 0.05, "weight_decay": 0.2}}, "config.trainer.optimizer.weight_decay"),
    "provider": ({"providers": {"dataset": "tests.rig.guarded:other_dataset"}}, "config.providers.dataset"),
}


@pytest.mark.parametrize("name", WARNED)
def test_what_may_be_meant_warns_and_goes_on(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    trainer, field = WARNED[name]
    folder = begun(tmp_path)
    with caplog.at_level(logging.WARNING, "keepstep"):
        start(folder, **trainer)
    assert any(one.startswith(f"{field} was ") for one in caplog.messages)
    assert (field, "warn") in [(one["field"], one["policy"]) for one in record(folder, 8)["accepted"]]
    # The next checkpoint says what holds now: there is nothing to warn of any more.
    caplog.clear()
    start(folder, 12, **trainer)
    assert not any(field in one for one in caplog.messages)


@pytest.mark.parametrize(("package", "policy"), [("torch", "warn"), ("torch", "refuse"), ("numpy", "accept")])
def test_another_version_of_a_package(
    tmp_path: Path, package: str, policy: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = begun(tmp_path)
    true_version = metadata.version
    monkeypatch.setattr(
        "keepstep.provenance.machine.packages.version",
        lambda name: "99.0" if name == package else true_version(name),
    )
    guards = {} if policy == "warn" else {"guards": {package: policy}}
    checkpointing = {"save_dir": str(folder / "checkpoints"), "period_steps": 4, "num_to_keep": 2, **guards}
    if policy == "refuse":
        with pytest.raises(GuardRefusedError, match=rf"{package} .* 99\.0 +refuse"):
            start(folder, checkpointing=checkpointing)
        return
    with caplog.at_level(logging.INFO, "keepstep"):
        start(folder, checkpointing=checkpointing)
    levels = [one.levelname for one in caplog.records if one.getMessage().startswith(f"{package} was ")]
    assert levels == ["WARNING"]
    assert record(folder, 8)[package] == "99.0"


def test_code_and_threads_warn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True)

    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    (tmp_path / "code.py").write_text("a = 1\n")
    git("add", "code.py")
    git("commit", "-q", "-m", "first")
    folder = begun(tmp_path)
    assert record(folder, 4)["git_dirty"] is False
    (tmp_path / "code.py").write_text("a = 2\n")
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with caplog.at_level(logging.WARNING, "keepstep"):
            start(folder)
    finally:
        torch.set_num_threads(threads)
    assert {one.split()[0] for one in caplog.messages if " was " in one} >= {"git_diff_sha256", "threads"}
    found = record(folder, 8)
    assert found["git_dirty"] is True
    assert re.fullmatch(r"[0-9a-f]{64}", found["git_diff_sha256"])


def test_another_world_is_accepted_where_the_position_is_global(tmp_path: Path) -> None:
    begun(tmp_path)
    outlook = can_resume(guarded.training(tmp_path, 8), 2)
    assert [(f.field, f.policy.value) for f in outlook.findings if f.field == "world_size"] == [
        ("world_size", "accept")
    ]
    forks.values(lambda: start(tmp_path), 2)
    assert record(tmp_path, 8)["world_size"] == 2


def test_a_flag_without_a_value_accepts_what_it_meets_first_and_nothing_else(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    guarded.change(rows=DATA["one byte edited"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keepstep.job.train.TrainingLoop.run", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            start(folder, accept=("dataset_sha256",))
    # The same command line again, after a stop before the first save: the same value goes on, another one does not.
    guarded.change(rows=DATA["two rows swapped"])
    with pytest.raises(GuardRefusedError, match="is bound to"):
        start(folder, accept=("dataset_sha256",))
    guarded.change(rows=DATA["one byte edited"])
    start(folder, accept=("dataset_sha256",))
    guarded.change(rows=DATA["two rows swapped"])
    with pytest.raises(GuardRefusedError, match="is bound to"):
        start(folder, 12, accept=("dataset_sha256",))


def test_a_moved_run_on_another_machine_of_another_user_is_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)  # out of git
    begun(tmp_path / "alice", **base(tmp_path / "alice"))
    (tmp_path / "alice").rename(tmp_path / "bob")
    monkeypatch.setattr("keepstep.provenance.machine.socket.gethostname", lambda: "elsewhere")
    monkeypatch.setenv("USER", "bob")
    monkeypatch.setenv("HOME", str(tmp_path / "bob"))
    monkeypatch.chdir(tmp_path / "bob")
    source = {"model_stage_factory": {"source_checkpoint": str(tmp_path / "bob" / "base")}}
    with caplog.at_level(logging.WARNING, "keepstep"):
        start(tmp_path / "bob", **source)
    assert caplog.messages == []
    before, after = record(tmp_path / "bob", 4), record(tmp_path / "bob", 8)
    digests = {name for name in before if name.endswith("sha256") or name in ("base_weights", "dataset_parts")}
    assert len(digests) == 6
    assert {name: before[name] for name in digests - {"config_sha256"}} == {
        name: after[name] for name in digests - {"config_sha256"}
    }
    start(tmp_path / "bob" / "again", 4, **source)
    assert record(tmp_path / "bob" / "again", 4)["config_sha256"] == before["config_sha256"]


def test_a_finished_training_is_not_judged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begun(tmp_path)
    before = jobs.tree_digest(tmp_path)
    guarded.change(rows=DATA["a row removed"])
    with caplog.at_level(logging.INFO, "keepstep"):
        start(tmp_path, 4)
    assert caplog.messages == ["Training is already complete, nothing to do"]
    assert jobs.tree_digest(tmp_path) == before
