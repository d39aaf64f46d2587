from pathlib import Path

import numpy as np
import pytest

from keepstep.config.address import Address, parse_address
from keepstep.ops.mirror.listing import list_stored
from keepstep.ops.mirror.showing import show_stored
from keepstep.ops.mirror.verifying import verify_address
from keepstep.ops.show import show
from keepstep.storage.stores.folder import FolderStore
from tests.rig.crafted import craft
from tests.rig.folders import make_checkpoint
from tests.rig.trainer_folders import adopt, make_trainer_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 10, 15):
        make_checkpoint(tmp_path / "run", step)
    return tmp_path / "run"


def at(path: Path) -> Address:
    return parse_address(f"file://{path}")


def test_a_checkpoint_is_shown_as_in_a_folder(run: Path) -> None:
    mine, theirs = show(run / "save-10"), show_stored(at(run / "save-10"))
    assert theirs.path == f"file://{run}/save-10"
    for name in ("step", "condition", "size", "files", "parts", "parameters", "dtypes", "largest", "record"):
        assert getattr(theirs, name) == getattr(mine, name)


def test_parents_are_those_of_the_neighbours(tmp_path: Path) -> None:
    for step, parent in ((1, None), (2, 1), (3, 2)):
        craft(tmp_path, step, {"model.w": np.zeros(3)}, record={"parent_step": parent})
    assert show_stored(at(tmp_path / "save-3")).parents == ("save-2", "save-1")


def test_no_shard_is_read_to_show(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a shard was read")

    monkeypatch.setattr(FolderStore, "read_into", refuse)
    assert show_stored(at(run / "save-5")).parameters == 10_000


def test_checkpoints_of_a_trainer(tmp_path: Path) -> None:
    run = adopt(make_trainer_checkpoint(tmp_path / "trained", 5).parent)
    assert [(c.step, c.condition) for c in list_stored(at(run)).checkpoints] == [(5, "complete")]
    shown = show_stored(at(run / "checkpoint-5"))
    assert [p.component for p in shown.parts] == ["lr_scheduler", "model", "optimizer", "rng"]
    assert [v.condition for v in verify_address(at(run))] == ["complete"]
