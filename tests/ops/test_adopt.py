"""Adoption of what a Trainer wrote alone: what is looked at, what is written, and what happens in between."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from keepstep.errors import CheckpointNotFoundError, ConfigError, CouldNotLookError, RunInUseError
from keepstep.ops import adopt as module
from keepstep.ops.adopt import apply_adopt, plan_adopt
from keepstep.ops.scoring.watcher import WatchOptions
from keepstep.ops.verify import verify
from keepstep.ops.watch import watch
from keepstep.plan.guards import Policy, judge
from keepstep.plan.resume import Condition
from keepstep.plan.scores import MARKED, SCORED
from keepstep.provenance.machine import machine
from keepstep.provenance.record import SCHEMA_VERSION, RunFacts, collect
from keepstep.storage.lock import acquire_lock
from keepstep.storage.run_record import read_true_record
from keepstep.storage.scoring.scores import read_scores
from keepstep.storage.survey import inspect
from tests.rig.folders import make_checkpoint
from tests.rig.trainer_folders import adopt, make_trainer_checkpoint


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


def refusal(run: Path) -> str:
    (one,) = plan_adopt(run).verdicts
    assert one.action == "refuse"
    return "; ".join(one.problems)


def test_it_becomes_a_checkpoint_that_verifies(tmp_path: Path) -> None:
    folder = make_trainer_checkpoint(tmp_path, 5, ranks=2)
    before, times = everything(tmp_path), folder.stat().st_mtime_ns
    os.utime(folder / "trainer_state.json", (1_700_000_000, 1_700_000_000))
    told: list[tuple[int, int]] = []
    done = apply_adopt(plan_adopt(tmp_path), lambda *numbers: told.append(numbers))
    assert (done.steps, done.failed) == ((5,), {})
    assert told[-1][0] == told[-1][1] == sum(len(data) for _, data in before.values())
    found = inspect(folder, 5)
    assert found.found.condition is Condition.COMPLETE
    assert found.manifest is not None
    assert (found.manifest.world_size, found.manifest.attempt) == (2, 1)
    assert [one.problems for one in verify(tmp_path)] == [()]
    # Nothing that the Trainer wrote is touched, and its rotation, which goes by time, sees no change.
    after = everything(tmp_path)
    assert {name: data for name, (_, data) in before.items()} == {name: after[name][1] for name in before}
    assert folder.stat().st_mtime_ns == times
    record = json.loads((folder / "run.json").read_text())
    assert (record["adopted"], record["created_at"]) == (True, "2023-11-14T22:13:20Z")
    assert os.listdir(tmp_path) == ["checkpoint-5"]


def test_the_record_has_the_fields_of_every_run_record_but_those_of_the_machine() -> None:
    known = module.adopted_record(step=1, attempt=1, created_at="", world_size=1, base_model=None, transformers=None)
    every = ["step", "attempt", "parent_step", "created_at", *collect(RunFacts(), 1), "adopted"]
    assert list(known) == [name for name in every if name in known]
    assert set(every) - set(known) == {*machine(), "data_parallel"} - {"transformers"}
    assert known["schema"] == SCHEMA_VERSION


def test_what_is_not_known_is_no_difference_at_a_resume(tmp_path: Path) -> None:
    make_trainer_checkpoint(tmp_path, 5)
    saved = read_true_record(adopt(tmp_path) / "checkpoint-5")
    known = {"seed": 1, "global_batch_size": 8, "tokenizer_sha256": "a", "dataset_sha256": "b", "base_weights": "c"}
    now = {**collect(RunFacts(**known, config={"a": 1}, elastic=False), 1), "git_commit": None}  # type: ignore[arg-type]
    assert judge(saved, now) == ()
    (other,) = judge(saved, {**now, "world_size": 2, "data_parallel": 2})
    assert (other.field, other.policy) == ("world_size", Policy.REFUSE)


def test_a_mark_of_a_loop_that_scores_is_respected_and_no_part_of_the_checkpoint(tmp_path: Path) -> None:
    mark = make_trainer_checkpoint(tmp_path, 5) / ".scored"
    make_trainer_checkpoint(tmp_path, 10)
    mark.touch()
    adopt(tmp_path)
    once = WatchOptions(until="once")
    assert watch(tmp_path, lambda path: {"a": 1}, options=once).scored == 1
    assert [(row.step, row.outcome) for row in read_scores(tmp_path)] == [(5, MARKED), (10, SCORED)]
    mark.unlink()
    assert [one.problems for one in verify(tmp_path)] == [(), ()]


def test_twice_does_nothing(tmp_path: Path) -> None:
    make_trainer_checkpoint(tmp_path, 5)
    adopt(tmp_path)
    before = everything(tmp_path)
    done = apply_adopt(plan_adopt(tmp_path))
    assert ([one.action for one in done.plan.verdicts], done.steps) == (["leave"], ())
    assert everything(tmp_path) == before


def test_one_of_several(tmp_path: Path) -> None:
    make_trainer_checkpoint(tmp_path, 5)
    make_trainer_checkpoint(tmp_path, 10)
    assert apply_adopt(plan_adopt(tmp_path / "checkpoint-10")).steps == (10,)
    assert [one.action for one in plan_adopt(tmp_path).verdicts] == ["adopt", "leave"]


def cut(name: str) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - 30)


def written(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (cut("model.safetensors"), "model.safetensors is not whole"),
        (cut("optimizer.pt"), "optimizer.pt is not whole: no archive of torch.save ends there"),
        (cut("scheduler.pt"), "scheduler.pt is not whole"),
        (cut("rng_state.pth"), "rng_state.pth is not whole"),
        (written("optimizer.pt", ""), "optimizer.pt is not whole"),
        (written("model.safetensors", ""), "model.safetensors is not whole"),
        (written("trainer_state.json", '{"global_step": 5'), "trainer_state.json is not readable"),
        (written("trainer_state.json", '{"global_step": 6}'), "trainer_state.json is of step 6"),
        (lambda folder: (folder / "scheduler.pt").unlink(), "scheduler.pt is missing"),
        (written("run.json", '{"mine": 1}'), "run.json: this name is keepstep's"),
        (written("manifest.json", '{"mine": 1}'), "its manifest.json is not of keepstep"),
        (lambda folder: (folder / "tokenizer").symlink_to("/"), "only plain files can"),
    ],
)
def test_what_is_not_whole_is_named_and_left(tmp_path: Path, harm: Callable[[Path], None], problem: str) -> None:
    folder = make_trainer_checkpoint(tmp_path, 5)
    harm(folder)
    before = everything(tmp_path)
    assert problem in refusal(tmp_path)
    assert apply_adopt(plan_adopt(tmp_path)).steps == ()
    assert everything(tmp_path) == before


def test_an_index_must_have_its_shards(tmp_path: Path) -> None:
    folder = make_trainer_checkpoint(tmp_path, 5)
    (folder / "model.safetensors").unlink()
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    save_file({"a": torch.ones(2)}, folder / first)
    index = {"weight_map": {"a": first, "b": second}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert f"{second} is missing, and model.safetensors.index.json names it" in refusal(tmp_path)
    save_file({"c": torch.ones(2)}, folder / second)
    assert f'{second} has no "b", and model.safetensors.index.json names it' in refusal(tmp_path)
    save_file({"b": torch.ones(2)}, folder / second)
    adopt(tmp_path)
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "model.safetensors.index.json has 2 bytes" in refusal(tmp_path)


def test_an_index_cannot_lead_elsewhere(tmp_path: Path) -> None:
    folder = make_trainer_checkpoint(tmp_path, 5)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    assert "../other.safetensors is missing" in refusal(tmp_path)


def test_shards_of_fsdp_in_folders(tmp_path: Path) -> None:
    folder = make_trainer_checkpoint(tmp_path, 5)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model_fsdp_0").mkdir()
    (folder / "pytorch_model_fsdp_0" / "__0_0.distcp").write_bytes(b"x")
    assert "pytorch_model_fsdp_0/.metadata is missing" in refusal(tmp_path)
    (folder / "pytorch_model_fsdp_0" / ".metadata").write_bytes(b"x")
    adopt(tmp_path)
    assert [one.problems for one in verify(tmp_path)] == [()]


@pytest.mark.parametrize("number", [0, 1])
def test_killed_before_the_manifest_it_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    folder = make_trainer_checkpoint(tmp_path, 5)
    real, names = module.replace_text, ["run.json", "manifest.json"]

    def dies(path: Path, text: str) -> None:
        if path.name == names[number]:
            path.with_name(f".{path.name}.77.tmp").write_text(text[:9])
            raise KeyboardInterrupt
        real(path, text)

    monkeypatch.setattr(module, "replace_text", dies)
    with pytest.raises(KeyboardInterrupt):
        apply_adopt(plan_adopt(tmp_path))
    assert inspect(folder, 5).found.condition is Condition.INCOMPLETE
    monkeypatch.undo()
    adopt(tmp_path)
    assert [one.problems for one in verify(tmp_path)] == [()]
    assert not [name for name in os.listdir(folder) if name.endswith(".tmp")]


def test_files_that_change_meanwhile(tmp_path: Path) -> None:
    folder = make_trainer_checkpoint(tmp_path, 5)
    plan = plan_adopt(tmp_path)
    done = apply_adopt(plan, lambda done, total: (folder / "optimizer.pt").write_bytes(b"other") and None)
    assert "its files changed while they were read" in done.failed[5]
    assert not (folder / "manifest.json").exists()


def test_a_job_at_work_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_trainer_checkpoint(tmp_path, 5)

    def is_held(folder: Path) -> None:
        raise RunInUseError(f"{folder} is in use by process 1 on elsewhere")

    monkeypatch.setattr(module, "acquire_lock", is_held)
    with pytest.raises(RunInUseError, match="in use"):
        apply_adopt(plan_adopt(tmp_path))
    assert not (tmp_path / "checkpoint-5" / "manifest.json").exists()


def test_the_lock_is_given_back(tmp_path: Path) -> None:
    make_trainer_checkpoint(tmp_path, 5)
    adopt(tmp_path)
    acquire_lock(tmp_path).release()
    assert not (tmp_path / ".keepstep").exists()


def test_where_nothing_is_to_be_adopted(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint-<step> folder"):
        plan_adopt(tmp_path)
    with pytest.raises(CouldNotLookError, match="no such folder"):
        plan_adopt(tmp_path / "nowhere")
    make_checkpoint(tmp_path, 5)
    with pytest.raises(ConfigError, match="nothing to adopt"):
        plan_adopt(tmp_path)
