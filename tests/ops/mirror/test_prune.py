import os
from pathlib import Path

import pytest

from keepstep.config.address import Address, parse_address
from keepstep.errors import CouldNotLookError, MirrorError
from keepstep.ops.mirror.prune import apply_mirror_prune, plan_mirror_prune
from keepstep.storage.stores.folder import FolderStore
from tests.rig.folders import make_checkpoint
from tests.rig.trainer_folders import adopt, make_trainer_checkpoint

_LONG_AGO = 1_700_000_000


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 10, 15):
        make_checkpoint(tmp_path / "run", step)
    return tmp_path / "run"


@pytest.fixture
def address(run: Path) -> Address:
    return parse_address(f"file://{run}")


def age(folder: Path) -> None:
    for path in folder.iterdir():
        os.utime(path, (_LONG_AGO, _LONG_AGO))


def test_it_says_first_and_does_then(run: Path, address: Address) -> None:
    plan = plan_mirror_prune(address, 1)
    assert [(v.step, v.keep) for v in plan.verdicts] == [(5, False), (10, False), (15, True)]
    assert plan.freed > 80_000
    assert sorted(os.listdir(run)) == ["save-10", "save-15", "save-5"]
    apply_mirror_prune(plan, address)
    assert os.listdir(run) == ["save-15"]
    apply_mirror_prune(plan_mirror_prune(address, 1), address)
    assert os.listdir(run) == ["save-15"]


def test_the_manifest_goes_first(run: Path, address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[tuple[str, str]] = []
    monkeypatch.setattr(FolderStore, "remove", lambda self, prefix, first: removed.append((prefix, first)))
    apply_mirror_prune(plan_mirror_prune(address, 1), address)
    assert removed == [("save-5", "manifest.json"), ("save-10", "manifest.json")]


def test_what_is_not_complete_does_not_count(run: Path, address: Address) -> None:
    os.truncate(run / "save-15" / "run.json", 0)
    plan = plan_mirror_prune(address, 1)
    assert [(v.step, v.keep) for v in plan.verdicts] == [(5, False), (10, True)]
    apply_mirror_prune(plan, address)
    assert sorted(os.listdir(run)) == ["save-10", "save-15"]


def test_what_stays_is_read_on_demand(run: Path, address: Address) -> None:
    shard = run / "save-15" / "__0_0.distcp"
    shard.write_bytes(bytes(shard.stat().st_size))
    assert [v.keep for v in plan_mirror_prune(address, 1).verdicts] == [False, False, True]
    plan = plan_mirror_prune(address, 1, read_bytes=True)
    assert [(v.step, v.keep) for v in plan.verdicts] == [(5, False), (10, True)]
    assert plan.damaged == ("save-15: __0_0.distcp: its content has changed",)
    apply_mirror_prune(plan, address)
    assert sorted(os.listdir(run)) == ["save-10", "save-15"]


def test_a_line_that_was_left_goes(run: Path, address: Address) -> None:
    make_checkpoint(run, 7, attempt=2)
    plan = plan_mirror_prune(address, 2)
    assert [(v.step, v.keep) for v in plan.verdicts] == [(5, True), (7, True), (10, False), (15, False)]


def test_where_nothing_is_complete_nothing_goes(run: Path, address: Address) -> None:
    for step in (5, 10, 15):
        (run / f"save-{step}" / "manifest.json").unlink()
        age(run / f"save-{step}")
    plan = plan_mirror_prune(address, 1)
    assert plan.verdicts == plan.incomplete == ()
    apply_mirror_prune(plan, address, incomplete=True)
    assert len(os.listdir(run)) == 3


def test_what_was_to_stay_is_looked_at_once_more(run: Path, address: Address) -> None:
    plan = plan_mirror_prune(address, 1)
    (run / "save-15" / "manifest.json").unlink()
    with pytest.raises(MirrorError, match="nothing was deleted"):
        apply_mirror_prune(plan, address)
    assert len(os.listdir(run)) == 3


def test_older_folders_that_are_not_complete_go_on_demand(run: Path, address: Address) -> None:
    for step in (1, 2, 20):
        (run / f"save-{step}").mkdir()
        (run / f"save-{step}" / "part").write_text("part")
    age(run / "save-1")
    age(run / "save-20")
    plan = plan_mirror_prune(address, 9)
    assert [(one.name, one.size, one.is_recent) for one in plan.incomplete] == [
        ("save-1", 4, False),
        ("save-2", 4, True),
    ]
    apply_mirror_prune(plan, address)
    assert (run / "save-1").exists()
    apply_mirror_prune(plan, address, incomplete=True)
    assert sorted(os.listdir(run)) == ["save-10", "save-15", "save-2", "save-20", "save-5"]


def test_a_store_that_fails_is_told(run: Path, address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_mirror_prune(address, 1)
    remove = FolderStore.remove

    def fail(self: FolderStore, prefix: str, first: str) -> None:
        if prefix == "save-10":
            raise OSError(13, "it is not allowed")
        remove(self, prefix, first)

    monkeypatch.setattr(FolderStore, "remove", fail)
    with pytest.raises(MirrorError, match="save-10 could not be deleted: it is not allowed; 1 of 2 are gone"):
        apply_mirror_prune(plan, address)
    with pytest.raises(CouldNotLookError):
        plan_mirror_prune(parse_address(f"file://{run}/save-15/run.json"), 1)


def test_the_best_of_a_trainer_stays(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        make_trainer_checkpoint(tmp_path / "trained", step, best=5)
    address = parse_address(f"file://{adopt(tmp_path / 'trained')}")
    for keep, steps in ((1, [5, 20]), (2, [5, 20]), (3, [5, 15, 20])):
        plan = plan_mirror_prune(address, keep)
        assert [v.step for v in plan.verdicts if v.keep] == steps
        assert plan.verdicts[0].reason == "the best, by what the newest says"
    apply_mirror_prune(plan_mirror_prune(address, 2), address)
    assert sorted(os.listdir(tmp_path / "trained")) == ["checkpoint-20", "checkpoint-5"]
