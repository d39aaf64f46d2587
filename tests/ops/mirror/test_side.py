import os
from pathlib import Path

import numpy as np
import pytest

from keepstep.config.address import Address, parse_address
from keepstep.errors import CheckpointNotFoundError, ConfigError, DamagedCheckpointError
from keepstep.ops import diff as diffing
from keepstep.ops.mirror.side import stored_side
from keepstep.storage.digest import BLOCK_SIZE
from tests.rig.crafted import craft, grid
from tests.rig.folders import make_checkpoint
from tests.rig.trainer_folders import adopt, make_trainer_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 10, 15):
        make_checkpoint(tmp_path / "run", step)
    return tmp_path / "run"


def at(path: Path) -> Address:
    return parse_address(f"file://{path}")


def test_a_diff_reads_indexes_and_what_digests_leave_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    w, v = np.arange(60_000, dtype=np.float32), np.ones(60_000, dtype=np.float32)
    craft(tmp_path / "a", 1, {"model.w": w, "model.v": v})
    craft(tmp_path / "b", 1, {"model.w": w, "model.v": v + 1})
    craft(tmp_path / "c", 1, {"model.w": w, "model.v": v}, ranks=2, cut=grid(2))
    # Folders stand for stores, and must be looked into as such.
    monkeypatch.setattr("keepstep.ops.address.place_of", parse_address)
    a, b, c = (f"file://{tmp_path}/{name}/save-1" for name in "abc")
    found = diffing.diff(a, b)
    assert [one.kind.key for one in found.different] == ["model.v"]
    assert found.bytes_read == 2 * (w.nbytes % BLOCK_SIZE)  # the block that both tensors lie in
    values = diffing.diff(a, b, values=True).different[0].values
    assert values is not None
    assert values.max_abs == 1.0
    other = diffing.diff(a, c)
    assert other.same_state
    assert other.bytes_read > 0


def test_what_cannot_be_compared_is_said(run: Path) -> None:
    adopted = adopt(make_trainer_checkpoint(run.parent / "trained", 5).parent)
    with pytest.raises(ConfigError, match="keepstep pull"):
        stored_side(at(adopted / "checkpoint-5"))
    (run / "save-5" / "manifest.json").unlink()
    with pytest.raises(CheckpointNotFoundError, match="no committed checkpoint"):
        stored_side(at(run / "save-5"))
    os.truncate(run / "save-10" / "run.json", 0)
    with pytest.raises(DamagedCheckpointError, match="keepstep verify"):
        stored_side(at(run / "save-10"))
