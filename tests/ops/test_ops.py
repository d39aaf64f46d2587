"""List, show, verify and prune: without torch, without unpickling."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keepstep.errors import CheckpointNotFoundError, CouldNotLookError
from keepstep.ops.listing import list_folder
from keepstep.ops.prune import apply_prune, plan_prune
from keepstep.ops.show import show
from keepstep.ops.verify import verify
from tests.rig.folders import make_checkpoint
from tests.rig.trainer_folders import make_trainer_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 10, 15):
        make_checkpoint(tmp_path / "run", step)
    return tmp_path / "run"


def test_listing(run: Path) -> None:
    os.truncate(run / "save-10" / "run.json", 0)
    (run / "notes").write_text("")
    (run / ".save-20.tmp-2").mkdir()
    listing = list_folder(run)
    assert [(c.step, c.condition) for c in listing.checkpoints] == [(5, "complete"), (10, "damaged"), (15, "complete")]
    assert listing.checkpoints[0].size == sum(
        f.stat().st_size for f in (run / "save-5").iterdir() if f.name != "manifest.json"
    )
    assert listing.checkpoints[0].created_at == "2026-01-01T00:00:00Z"
    assert "run.json has 0 bytes" in listing.checkpoints[1].problem
    assert listing.leftovers == (".save-20.tmp-2",)
    assert listing.foreign == ("notes",)
    assert list_folder(run.parent).runs == ("run",)
    with pytest.raises(CouldNotLookError, match="no such folder"):
        list_folder(run / "nowhere")


def test_showing(run: Path) -> None:
    shown = show(run / "save-10")
    assert (shown.step, shown.condition, shown.parameters) == (10, "complete", 10_000)
    assert [(p.component, p.entries, p.size) for p in shown.parts] == [("model", 2, 40_000)]
    assert [t.key for t in shown.largest] == ["model.first", "model.second"]
    assert shown.dtypes == {"float32": 2}
    assert shown.record["run"] == "made-up"
    with pytest.raises(CheckpointNotFoundError, match="save-<step>"):
        show(run)


def test_verifying_one_and_all(run: Path) -> None:
    shard = run / "save-10" / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[30_000] ^= 1
    shard.write_bytes(data)
    assert [(v.step, v.condition) for v in verify(run)] == [(5, "complete"), (10, "damaged"), (15, "complete")]
    (one,) = verify(run / "save-10")
    assert one.problems == ("__0_0.distcp: its content has changed in 1 blocks (model.first, model.second)",) or (
        "model.second" in one.problems[0]
    )
    with pytest.raises(CheckpointNotFoundError):
        list(verify(run / "save-99"))
    with pytest.raises(CheckpointNotFoundError):
        list(verify(run.parent))


def test_pruning_says_first_and_does_then(run: Path) -> None:
    os.truncate(run / "save-15" / "run.json", 0)  # damaged: does not count, is not touched
    make_checkpoint(run, 20)
    plan = plan_prune(run, 2)
    assert [(v.step, v.keep) for v in plan.verdicts] == [(5, False), (10, True), (20, True)]
    assert plan.freed > 40_000
    assert sorted(os.listdir(run)) == ["save-10", "save-15", "save-20", "save-5"]
    apply_prune(plan)
    assert sorted(os.listdir(run)) == ["save-10", "save-15", "save-20"]


def test_none_of_it_imports_torch_or_unpickles(run: Path) -> None:
    script = """
import pickle, sys
pickle.load = pickle.loads = pickle.Unpickler = None
from pathlib import Path
import keepstep, keepstep.plan
from keepstep.ops import adopt, diff, listing, prune, resumable, show, verify
run = Path(sys.argv[1])
listing.list_folder(run)
show.show(run / "save-5")
list(verify.verify(run))
prune.apply_prune(prune.plan_prune(run, 2))
run = Path(sys.argv[2])
adopt.apply_adopt(adopt.plan_adopt(run))
listing.list_folder(run)
show.show(run / "checkpoint-5")
list(verify.verify(run))
diff.diff(str(run / "checkpoint-5"), str(run / "checkpoint-10"))
assert resumable.look_ahead(run).step == 10
prune.apply_prune(prune.plan_prune(run, 1))
assert "torch" not in sys.modules
"""
    for step in (5, 10):
        make_trainer_checkpoint(run.parent / "trained", step)
    subprocess.run([sys.executable, "-c", script, str(run), str(run.parent / "trained")], check=True)


def test_pruning_never_trusts_a_damaged_checkpoint_over_a_good_one(run: Path) -> None:
    shard = run / "save-15" / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[7] ^= 1
    shard.write_bytes(data)
    plan = plan_prune(run, 1)
    assert [(v.step, v.keep) for v in plan.verdicts] == [(5, False), (10, True)]
    assert plan.damaged[0].startswith("save-15: __0_0.distcp")
    apply_prune(plan)
    assert sorted(os.listdir(run)) == ["save-10", "save-15"]
    with pytest.raises(CouldNotLookError, match="no such folder"):
        plan_prune(run / "nowhere", 1)


def test_pruning_clears_what_a_deletion_left(run: Path) -> None:
    (run / "save-5").rename(run / ".save-5.del-1")
    (run / ".save-20.tmp-1").mkdir()
    apply_prune(plan_prune(run, 9))
    assert sorted(os.listdir(run)) == [".save-20.tmp-1", "save-10", "save-15"]
