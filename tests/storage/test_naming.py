"""How a folder's checkpoints are called is seen from what lies there."""

from pathlib import Path

from keepstep.plan.layout import NATIVE, TRAINER
from keepstep.storage.lock import acquire_lock
from keepstep.storage.naming import naming_in
from tests.rig.trainer_folders import adopt, make_trainer_checkpoint


def test_naming_in(tmp_path: Path) -> None:
    assert naming_in(tmp_path / "nowhere") is NATIVE
    assert naming_in(tmp_path) is NATIVE
    (tmp_path / "checkpoint-5.bak").mkdir()
    (tmp_path / "checkpoint-7").write_text("a file")
    assert naming_in(tmp_path) is NATIVE
    (tmp_path / "checkpoint-5").mkdir()
    assert naming_in(tmp_path) is TRAINER
    (tmp_path / "save-5").mkdir()
    assert naming_in(tmp_path) is NATIVE


def test_attempts_are_counted_over_checkpoints_of_both_names(tmp_path: Path) -> None:
    make_trainer_checkpoint(tmp_path, 5)
    adopt(tmp_path)
    lock = acquire_lock(tmp_path)
    try:
        assert lock.number == 2
    finally:
        lock.release()
