from pathlib import Path

import pytest

from keepstep.config.address import Address, parse_address
from keepstep.errors import CheckpointNotFoundError, CouldNotLookError
from keepstep.ops.mirror.verifying import verify_address
from keepstep.storage.stores.folder import FolderStore
from tests.rig.folders import make_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 10, 15):
        make_checkpoint(tmp_path / "run", step)
    return tmp_path / "run"


def at(path: Path) -> Address:
    return parse_address(f"file://{path}")


def test_all_bytes_are_verified(run: Path) -> None:
    shard = run / "save-10" / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[30_000] ^= 1
    shard.write_bytes(data)
    (run / "save-15" / "run.json").unlink()
    told: list[tuple[int, int]] = []
    found = list(verify_address(at(run), lambda done, total: told.append((done, total))))
    assert [(v.step, v.condition) for v in found] == [(5, "complete"), (10, "damaged"), (15, "damaged")]
    assert found[0].path == f"file://{run}/save-5"
    assert found[1].problems == ("__0_0.distcp: its content has changed",)
    assert "run.json is missing" in found[2].problems[0]
    assert told[-1][0] <= told[-1][1]
    assert [v.step for v in verify_address(at(run / "save-5"))] == [5]
    with pytest.raises(CheckpointNotFoundError):
        list(verify_address(at(run.parent / "nowhere")))


def test_a_store_that_fails_is_no_damage(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "the network is gone")

    monkeypatch.setattr(FolderStore, "read_into", fail)
    with pytest.raises(CouldNotLookError, match="the network is gone"):
        list(verify_address(at(run / "save-5")))
