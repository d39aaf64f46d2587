import json
import os
import time
from pathlib import Path

import pytest

from keepstep.errors import CheckpointNotFoundError
from keepstep.plan.retention import plan_retention
from keepstep.storage.deletion import delete_checkpoint
from keepstep.storage.leases import Lease, held_steps, hold
from tests.rig.folders import make_checkpoint


def test_a_held_checkpoint_is_not_deleted_until_it_is_given_back(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 5)
    with hold(tmp_path, 5) as checkpoint:
        assert checkpoint == tmp_path / "save-5"
        assert not delete_checkpoint(tmp_path, 5, 1)
        assert checkpoint.is_dir()
    assert held_steps(tmp_path) == frozenset()
    assert delete_checkpoint(tmp_path, 5, 1)


def test_one_that_is_gone_cannot_be_held(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="save-5 is gone"), hold(tmp_path, 5):
        pass
    assert held_steps(tmp_path) == frozenset()


def test_a_lease_of_a_reader_that_died_ends(tmp_path: Path) -> None:
    leases = tmp_path / ".keepstep" / "leases"
    leases.mkdir(parents=True)
    for step, age in ((5, 30), (10, 90)):
        file = leases / f"save-{step}.x"
        file.write_text(json.dumps({"seconds": 60}))
        status = file.stat()
        os.utime(file, (status.st_atime, status.st_mtime - age))
    assert held_steps(tmp_path) == {5}
    assert [path.name for path in leases.iterdir()] == ["save-5.x"]


@pytest.mark.parametrize("content", ["", "[1]", '{"seconds": "x"}', '{"seconds": 1' + "0" * 400 + "}", "[" * 999])
def test_a_lease_that_says_nothing_is_held_for_long(content: str, tmp_path: Path) -> None:
    leases = tmp_path / ".keepstep" / "leases"
    leases.mkdir(parents=True)
    (leases / "save-5.x").write_text(content)
    assert held_steps(tmp_path) == {5}


def test_held_ones_stay_beside_those_that_count() -> None:
    kept = [v.step for v in plan_retention([5, 10, 15, 20], 2, protected=[20], held=[5]) if v.keep]
    assert kept == [5, 15, 20]
    reasons = {v.step: v.reason for v in plan_retention([5, 10, 15, 20], 2, protected=[20], held=[5])}
    assert reasons[5] == "pinned, or held by a reader"


def test_a_lease_comes_back_when_its_process_slept_for_longer_than_it_was_good(tmp_path: Path) -> None:
    lease = Lease(tmp_path, 10, seconds=0.2)
    for path in (tmp_path / ".keepstep" / "leases").iterdir():
        path.unlink()  # as `held_steps` does with one that is over
    until = time.monotonic() + 20
    while held_steps(tmp_path) != {10} and time.monotonic() < until:
        time.sleep(0.01)
    assert held_steps(tmp_path) == {10}
    lease.release()
    assert held_steps(tmp_path) == frozenset()
