import os
import time
import uuid
from pathlib import Path

import pytest

from keepstep.config.address import Address, parse_address
from keepstep.errors import CheckpointNotFoundError, ConfigError, CouldNotLookError, DamagedCheckpointError, MirrorError
from keepstep.ops.diff import diff
from keepstep.ops.mirror.fence import Fence
from keepstep.ops.mirror.listing import list_stored
from keepstep.ops.mirror.pull import pull
from keepstep.ops.mirror.push import push
from keepstep.ops.mirror.showing import show_stored
from keepstep.ops.mirror.verifying import verify_address
from keepstep.storage.leases import held_steps
from keepstep.storage.line import Line, note_line
from keepstep.storage.stores.folder import FolderStore
from tests.rig.crafted import craft
from tests.rig.folders import make_checkpoint
from tests.rig.trainer_folders import adopt, make_trainer_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 10, 15):
        make_checkpoint(tmp_path / "run", step)
    return tmp_path / "run"


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    return tmp_path / "mirror"


def at(path: Path) -> Address:
    return parse_address(f"file://{path}")


def contents(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.iterdir()}


def there(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/manifest.json"))


def test_all_that_are_not_there_under_the_name_of_the_run(run: Path, mirror: Path) -> None:
    told: list[tuple[int, int]] = []
    done = push(run, at(mirror), watch=lambda done, total: told.append((done, total)))
    assert [(one.step, one.is_new) for one in done.pushed] == [(15, True), (10, True), (5, True)]
    assert done.pushed[0].address == f"file://{mirror}/run/save-15"
    assert contents(mirror / "run" / "save-10") == contents(run / "save-10")
    assert told[-1][0] >= sum(one.size for one in done.pushed)
    make_checkpoint(run, 20)
    assert [(one.step, one.is_new) for one in push(run, at(mirror)).pushed] == [
        (20, True),
        (15, False),
        (10, False),
        (5, False),
    ]


def test_the_newest_goes_first_and_is_held(run: Path, mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, frozenset[int]]] = []
    put = FolderStore.put

    def watched(self: FolderStore, uploads: object, last: object, meter: object, confirm: object) -> None:
        seen.append((last.name, held_steps(run)))  # type: ignore[attr-defined]
        put(self, uploads, last, meter, confirm)  # type: ignore[arg-type]

    monkeypatch.setattr(FolderStore, "put", watched)
    push(run, at(mirror))
    assert seen == [(f"run/save-{step}/manifest.json", frozenset({step})) for step in (15, 10, 5)]
    assert held_steps(run) == frozenset()


def test_one_checkpoint_and_named_steps(run: Path, mirror: Path) -> None:
    push(run / "save-10", at(mirror))
    assert there(mirror / "run") == ["save-10"]
    push(run, at(mirror), steps=(5,))
    assert there(mirror / "run") == ["save-10", "save-5"]
    with pytest.raises(CheckpointNotFoundError, match="no such checkpoint"):
        push(run, at(mirror), steps=(7,))
    with pytest.raises(CheckpointNotFoundError, match="no such checkpoint"):
        push(run / "save-7", at(mirror))
    with pytest.raises(CouldNotLookError, match="no such folder"):
        push(run / "nowhere", at(mirror))
    os.truncate(run / "save-15" / "run.json", 0)
    with pytest.raises(DamagedCheckpointError, match=r"run\.json has 0 bytes"):
        push(run / "save-15", at(mirror))


def test_the_name_of_the_run(run: Path, mirror: Path, tmp_path: Path) -> None:
    push(run / "save-5", at(mirror), name="other")
    push(run / "save-5", at(mirror), name="")
    assert there(mirror / "other") == there(mirror) == ["save-5"]
    for name in ("a/b", ".hidden", "save-3", ".."):
        with pytest.raises(ConfigError, match="--as"):
            push(run, at(mirror), name=name)
    craft(tmp_path / "outputs", 5, {}, record={"run": None})
    with pytest.raises(ConfigError, match="--no-name"):
        push(tmp_path / "outputs", at(mirror))
    push(tmp_path / "outputs", at(mirror), name="generate")
    assert there(mirror / "generate") == ["save-5"]


def test_a_later_attempt_of_a_step_is_not_replaced_an_earlier_one_is(run: Path, mirror: Path, tmp_path: Path) -> None:
    later = make_checkpoint(tmp_path / "elsewhere" / "run", 10, attempt=2)
    push(later, at(mirror))
    with pytest.raises(MirrorError, match="save-10 is of attempt 2 of the run, and here step 10 is of attempt 1"):
        push(run, at(mirror))
    assert there(mirror / "run") == ["save-10"]
    push(run, at(mirror), steps=(5, 15))
    push(run / "save-10", at(mirror), name="old")
    push(later, at(mirror), name="old")
    assert contents(mirror / "old" / "save-10") == contents(later)


def test_what_the_run_has_left_is_uploaded_only_by_name(run: Path, mirror: Path) -> None:
    note_line(run, Line(5, 2))
    assert [one.step for one in push(run, at(mirror)).pushed] == [5]
    assert [one.step for one in push(run, at(mirror), steps=(15,)).pushed] == [15]


def test_a_job_that_may_be_at_work_is_warned_of(run: Path, mirror: Path) -> None:
    Fence(FolderStore(mirror), "run", 1, "a job").take()
    assert not push(run, at(mirror)).warnings
    Fence(FolderStore(mirror), "run", 12, "another job").take()
    (warning,) = push(run, at(mirror)).warnings
    assert warning.startswith(f"attempt 12 of the run has file://{mirror}/run")


def test_a_damaged_one_does_not_keep_the_others_back(run: Path, mirror: Path) -> None:
    shard = run / "save-15" / "__0_0.distcp"
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(MirrorError, match=r"There: step 10, step 5; not there: step 15\.") as caught:
        push(run, at(mirror))
    assert "is not as it was written" in str(caught.value)
    assert there(mirror / "run") == ["save-10", "save-5"]


def test_a_store_that_fails_is_told_with_what_is_there(
    run: Path, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = FolderStore.put

    def fail(self: FolderStore, uploads: object, last: object, meter: object, confirm: object) -> None:
        if "save-10" in last.name:  # type: ignore[attr-defined]
            raise OSError(5, "the network is gone")
        put(self, uploads, last, meter, confirm)  # type: ignore[arg-type]

    monkeypatch.setattr(FolderStore, "put", fail)
    with pytest.raises(MirrorError, match=r"the network is gone\. There: step 15; not there: step 10, step 5"):
        push(run, at(mirror))


def test_a_bandwidth_is_kept(tmp_path: Path, mirror: Path) -> None:
    size = 2 * 2**20
    checkpoint = make_checkpoint(tmp_path / "run", 1, size=size)
    began = time.monotonic()
    push(checkpoint, at(mirror), mib_per_second=4)
    # A quarter of a second's worth may go at once.
    assert time.monotonic() - began >= size / (4 * 2**20) - 0.25


def test_a_checkpoint_of_a_trainer(tmp_path: Path, mirror: Path) -> None:
    trained = adopt(make_trainer_checkpoint(tmp_path / "trained", 5).parent)
    push(trained, at(mirror))
    assert there(mirror / "trained") == ["checkpoint-5"]


def test_a_real_object_store_is_written_and_read(run: Path, s3: str) -> None:
    top = parse_address(f"{s3}/{uuid.uuid4().hex}")
    before = time.time()
    push(run, top)
    address = top.joined("run")
    listed = list_stored(address)
    assert [(c.step, c.condition) for c in listed.checkpoints] == [(5, "complete"), (10, "complete"), (15, "complete")]
    assert (listed.checkpoints[0].created_at or "")[:4] == time.strftime("%Y", time.gmtime(before))
    assert list_stored(top).runs == ("run",)
    assert show_stored(address.joined("save-5")).parameters == 10_000
    assert [v.condition for v in verify_address(address)] == ["complete"] * 3
    assert diff(str(address.joined("save-5")), str(run / "save-5")).same
    assert list_stored(top.joined("nothing")).checkpoints == ()
    pull(address, run.with_name("back"))
    assert contents(run.with_name("back") / "save-15") == contents(run / "save-15")
