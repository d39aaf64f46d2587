"""The commands' work on the checkpoints of a Trainer: list, show, verify, compare, prune."""

import os
from pathlib import Path

import pytest

from keepstep.errors import CheckpointNotFoundError, DamagedCheckpointError
from keepstep.ops.diff import diff
from keepstep.ops.lineage import lines_in
from keepstep.ops.listing import list_folder
from keepstep.ops.prune import apply_prune, plan_prune
from keepstep.ops.show import show
from keepstep.ops.verify import verify
from tests.rig.trainer_folders import adopt, make_trainer_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 10, 15):
        make_trainer_checkpoint(tmp_path / "run", step, best=5)
    return adopt(tmp_path / "run")


def test_listing(run: Path) -> None:
    make_trainer_checkpoint(run, 20)
    listing = list_folder(run)
    assert [(c.step, c.condition) for c in listing.checkpoints] == [
        *((step, "complete") for step in (5, 10, 15)),
        (20, "incomplete"),
    ]
    assert f"keepstep adopt {run}" in listing.checkpoints[-1].problem
    assert list_folder(run.parent).runs == ("run",)
    (line,) = lines_in(run)
    assert (line.prefix, line.checkpoints) == ("checkpoint", (5, 10, 15))


def test_showing(run: Path) -> None:
    shown = show(run / "checkpoint-10")
    assert (shown.step, shown.condition, shown.world_size, shown.parameters) == (10, "complete", 1, 36)
    assert [(part.component, part.entries) for part in shown.parts] == [
        *(("lr_scheduler", 1), ("model", 2), ("optimizer", 1), ("rng", 1))
    ]
    facts = shown.trainer
    assert facts is not None
    assert (facts.epoch, facts.best_metric, facts.best_checkpoint) == (1.0, 0.25, "checkpoint-5")
    assert (facts.weights, facts.optimizer, facts.scheduler, facts.rng_ranks) == ("full", True, True, 1)
    assert shown.record["adopted"] is True


def test_showing_an_adapter_that_is_not_adopted(tmp_path: Path) -> None:
    shown = show(make_trainer_checkpoint(tmp_path, 5, adapter=True, ranks=2))
    assert shown.trainer is not None
    assert (shown.trainer.weights, shown.trainer.base_model, shown.trainer.rng_ranks) == ("adapter", "some/base", 2)
    assert shown.condition == "incomplete"
    assert shown.parameters == 24


def test_verifying_names_the_file(run: Path) -> None:
    file = run / "checkpoint-10" / "optimizer.pt"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    assert [(one.step, one.condition) for one in verify(run)] == [(5, "complete"), (10, "damaged"), (15, "complete")]
    (one,) = verify(run / "checkpoint-10")
    assert one.problems == ("optimizer.pt: its content has changed",)
    assert show(run / "checkpoint-10").condition == "complete"  # of a listing sizes are enough


def test_comparing(run: Path) -> None:
    found = diff(str(run / "checkpoint-5"), str(run / "checkpoint-10"), values=True)
    unequal = {one.kind.key: one for one in found.different}
    assert set(unequal) == {"model.layer.weight", "optimizer.pt", "scheduler.pt"}
    values = unequal["model.layer.weight"].values
    assert values is not None
    assert values.max_abs == 5.0
    assert [one.key for one in found.changed] == ["trainer_state.json"]
    assert [one.field for one in found.record] == ["step"]
    assert (found.a.form, found.a.step, found.b.step) == ("checkpoint", 5, 10)


def test_comparing_equal_files_reads_none(run: Path) -> None:
    found = diff(str(run / "checkpoint-5"), str(run / "checkpoint-5"), values=True)
    assert found.same
    assert found.bytes_read == 0


def test_comparing_with_an_export_and_with_one_that_is_not_adopted(run: Path) -> None:
    other = make_trainer_checkpoint(run, 20)
    found = diff(str(run / "checkpoint-5"), str(other))
    assert [one.kind.key for one in found.different] == ["model.layer.weight"]
    assert found.b.form == "safetensors"
    assert diff(str(run / "checkpoint-5"), str(run / "checkpoint-5" / "model.safetensors")).same_state
    (other / "model.safetensors").unlink()
    with pytest.raises(CheckpointNotFoundError, match="keepstep adopt"):
        diff(str(other), str(run / "checkpoint-5"))
    os.truncate(run / "checkpoint-5" / "optimizer.pt", 3)
    with pytest.raises(DamagedCheckpointError, match=r"optimizer\.pt has 3 bytes"):
        diff(str(run / "checkpoint-5"), str(run / "checkpoint-10"))


def test_pruning_keeps_the_best_and_the_newest(run: Path) -> None:
    make_trainer_checkpoint(run, 20)  # nobody's yet: neither counted nor touched
    plan = plan_prune(run, 1)
    assert [(v.step, v.keep) for v in plan.verdicts] == [(5, True), (10, False), (15, True)]
    assert "the best" in plan.verdicts[0].reason
    apply_prune(plan)
    assert sorted(os.listdir(run)) == ["checkpoint-15", "checkpoint-20", "checkpoint-5"]


def test_pruning_without_a_best(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        make_trainer_checkpoint(tmp_path, step)
    apply_prune(plan_prune(adopt(tmp_path), 2))
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-10", "checkpoint-15"]


def test_a_damaged_best_does_not_count(run: Path) -> None:
    os.truncate(run / "checkpoint-5" / "optimizer.pt", 3)
    assert [(v.step, v.keep) for v in plan_prune(run, 1).verdicts] == [(10, False), (15, True)]
