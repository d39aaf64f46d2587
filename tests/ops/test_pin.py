"""A pinned checkpoint outlives retention, also of a Trainer's folder, until it is unpinned."""

import json
from pathlib import Path

import pytest

from keepstep.errors import CheckpointNotFoundError
from keepstep.ops.pin import pin_checkpoint
from tests.rig.command import keepstep
from tests.rig.folders import make_checkpoint, names
from tests.rig.trainer_folders import adopt, make_trainer_checkpoint


@pytest.mark.parametrize("prefix", ["save", "checkpoint"])
def test_a_pinned_checkpoint_stays(prefix: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (10, 20, 30, 40):
        if prefix == "save":
            make_checkpoint(run, step)
        else:
            make_trainer_checkpoint(run, step)
    if prefix == "checkpoint":
        adopt(run)
    pinned = run / f"{prefix}-10"
    assert "is pinned" in keepstep("pin", str(pinned)).stdout
    assert "was pinned already" in keepstep("pin", str(pinned)).stdout
    listed = json.loads(keepstep("ls", str(run), "--json").stdout)
    assert [one["pinned"] for one in listed["checkpoints"]] == [True, False, False, False]
    assert "complete, pinned" in keepstep("ls", str(run)).stdout
    pruned = keepstep("prune", str(run), "--keep", "1").stdout
    assert f"keep {prefix}-10: pinned" in pruned
    assert sorted(path.name for path in run.glob(f"{prefix}-*")) == [f"{prefix}-10", f"{prefix}-40"]
    assert "not pinned any more" in keepstep("unpin", str(pinned)).stdout
    assert "was not pinned" in keepstep("unpin", str(pinned)).stdout
    keepstep("prune", str(run), "--keep", "1")
    assert sorted(path.name for path in run.glob(f"{prefix}-*")) == [f"{prefix}-40"]


def test_what_is_not_whole_is_not_pinned(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError):
        pin_checkpoint(tmp_path / "save-10")
    checkpoint = make_checkpoint(tmp_path, 10)
    (checkpoint / "manifest.json").unlink()
    with pytest.raises(CheckpointNotFoundError, match="incomplete"):
        pin_checkpoint(checkpoint)
    assert names(tmp_path) == ["save-10"]
