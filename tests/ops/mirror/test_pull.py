import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from keepstep.config.address import Address, parse_address
from keepstep.errors import CheckpointNotFoundError, ConfigError, DamagedCheckpointError, MirrorError, RunInUseError
from keepstep.ops.mirror.pull import pull
from keepstep.ops.verify import verify
from keepstep.storage.stores.folder import FolderStore
from tests.rig.folders import make_checkpoint, names
from tests.rig.trainer_folders import adopt, make_trainer_checkpoint
from tests.rig.web_server import WebManners, web_server

_JOB = """
import sys
from pathlib import Path
from keepstep.storage.lock import acquire_lock
acquire_lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""

_KILLED = """
import os, signal, sys
from pathlib import Path
from keepstep.config.address import parse_address
from keepstep.ops.mirror.pull import pull
from keepstep.storage.stores.folder import FolderStore
if sys.argv[3] == "read":
    FolderStore.read_into = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
else:
    Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
pull(parse_address(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    for step in (5, 10, 15):
        make_checkpoint(tmp_path / "mirror" / "run", step, attempt=2)
    return tmp_path / "mirror" / "run"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "here" / "run"


def at(path: Path) -> Address:
    return parse_address(f"file://{path}")


def change(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def contents(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.iterdir()}


def test_one_checkpoint(mirror: Path, folder: Path) -> None:
    told: list[tuple[int, int]] = []
    done = pull(at(mirror / "save-10"), folder, watch=lambda done, total: told.append((done, total)))
    assert [(one.step, one.path, one.is_new) for one in done.pulled] == [(10, str(folder / "save-10"), True)]
    assert os.listdir(folder) == ["save-10"]
    assert contents(folder / "save-10") == contents(mirror / "save-10")
    assert told[-1] == (done.pulled[0].size, done.pulled[0].size)
    assert [one.condition for one in verify(folder)] == ["complete"]


def test_of_a_run_the_newest_that_is_complete(mirror: Path, folder: Path) -> None:
    (mirror / "save-15" / "manifest.json").unlink()
    assert [one.step for one in pull(at(mirror), folder).pulled] == [10]
    make_checkpoint(mirror, 7, attempt=3)  # the run went on from 5
    assert [one.step for one in pull(at(mirror), folder.with_name("other")).pulled] == [7]


def test_named_steps_and_all(mirror: Path, folder: Path) -> None:
    assert [one.step for one in pull(at(mirror), folder, steps=(5, 10)).pulled] == [10, 5]
    done = pull(at(mirror), folder, take_all=True)
    assert [(one.step, one.is_new) for one in done.pulled] == [(15, True), (10, False), (5, False)]
    assert names(folder) == ["save-10", "save-15", "save-5"]
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint of step 7; there are 5, 10, 15"):
        pull(at(mirror), folder, steps=(7,))
    with pytest.raises(ConfigError):
        pull(at(mirror / "save-5"), folder, take_all=True)


def test_another_checkpoint_is_never_overwritten(mirror: Path, folder: Path) -> None:
    make_checkpoint(folder, 10, attempt=1)
    before = contents(folder / "save-10")
    with pytest.raises(MirrorError, match="move it away") as caught:
        pull(at(mirror), folder, take_all=True)
    assert "of attempt 1; there it is of attempt 2" in str(caught.value)
    assert contents(folder / "save-10") == before
    assert names(folder) == ["save-10"]
    (folder / "save-10" / "manifest.json").unlink()
    with pytest.raises(MirrorError, match="it has no manifest"):
        pull(at(mirror / "save-10"), folder)


@pytest.mark.parametrize("damage", [change, lambda path: os.truncate(path, 7)])
def test_a_damaged_copy_here_is_kept_and_replaced(mirror: Path, folder: Path, damage: Callable[[Path], None]) -> None:
    pull(at(mirror / "save-10"), folder)
    damage(folder / "save-10" / "__0_0.distcp")
    before = contents(folder / "save-10")
    (one,) = pull(at(mirror / "save-10"), folder).pulled
    assert one.is_new
    assert one.replaced is not None
    assert contents(Path(one.replaced)) == before
    assert contents(folder / "save-10") == contents(mirror / "save-10")


def test_damage_on_the_mirror_leaves_nothing(mirror: Path, folder: Path) -> None:
    change(mirror / "save-15" / "__0_0.distcp")
    with pytest.raises(DamagedCheckpointError, match=r"save-15 is damaged: __0_0\.distcp .* Nothing of it was left"):
        pull(at(mirror), folder)
    assert not folder.exists()
    with pytest.raises(DamagedCheckpointError, match="Steps that are in the folder: 10, 5"):
        pull(at(mirror), folder, take_all=True)
    assert sorted(os.listdir(folder)) == ["save-10", "save-5"]
    os.truncate(mirror / "save-5" / "run.json", 0)
    with pytest.raises(DamagedCheckpointError, match=r"run\.json has 0 bytes"):
        pull(at(mirror / "save-5"), folder.with_name("other"))


def test_nothing_is_there(mirror: Path, folder: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="runs with checkpoints: run"):
        pull(at(mirror.parent), folder)
    for step in (5, 10, 15):
        (mirror / f"save-{step}" / "manifest.json").unlink()
    with pytest.raises(DamagedCheckpointError, match="none of 3 checkpoints is complete"):
        pull(at(mirror), folder)
    assert not folder.parent.exists()


def test_a_copy_that_breaks_off_leaves_nothing(mirror: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "the network is gone")

    monkeypatch.setattr(FolderStore, "read_into", fail)
    with pytest.raises(MirrorError, match="save-15 was not copied: the network is gone; nothing of it was left"):
        pull(at(mirror), folder)
    assert not folder.exists()


@pytest.mark.parametrize("place", ["read", "publish"])
def test_one_that_is_killed_leaves_no_checkpoint_and_the_next_goes_on(mirror: Path, folder: Path, place: str) -> None:
    script = [sys.executable, "-c", _KILLED, str(at(mirror)), str(folder), place]
    assert subprocess.run(script, check=False, timeout=60).returncode == -signal.SIGKILL
    assert [name for name in names(folder) if not name.startswith(".save-15.tmp-")] == []
    assert [one.step for one in pull(at(mirror), folder).pulled] == [15]
    assert contents(folder / "save-15") == contents(mirror / "save-15")
    assert [name for name in names(folder) if ".tmp-" in name] == []


def test_it_never_writes_under_a_job(mirror: Path, folder: Path) -> None:
    make_checkpoint(folder, 1)
    job = subprocess.Popen(
        [sys.executable, "-c", _JOB, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    try:
        assert job.stdout.readline() == "held\n"
        with pytest.raises(RunInUseError, match=f"in use by process {job.pid}"):
            pull(at(mirror), folder)
        assert names(folder) == ["save-1"]
    finally:
        job.kill()
        job.communicate()
    assert [one.step for one in pull(at(mirror), folder).pulled] == [15]


def test_a_line_that_was_left_is_warned_of(mirror: Path, folder: Path) -> None:
    make_checkpoint(folder, 20, attempt=1)
    (warning,) = pull(at(mirror), folder).warnings
    assert "later steps of an earlier attempt than save-15" in warning
    assert not pull(at(mirror), folder.with_name("other")).warnings


def test_a_checkpoint_of_a_trainer(tmp_path: Path, folder: Path) -> None:
    trained = adopt(make_trainer_checkpoint(tmp_path / "trained", 5).parent)
    pull(at(trained), folder)
    assert contents(folder / "checkpoint-5") == contents(trained / "checkpoint-5")


def test_from_a_web_server(mirror: Path, folder: Path) -> None:
    manners = WebManners()
    with web_server(mirror.parent, manners) as address:
        pull(parse_address(f"{address}/run/save-10?token=secret"), folder)
    assert contents(folder / "save-10") == contents(mirror / "save-10")
    assert all(path.endswith("?token=secret") for path in manners.paths)
