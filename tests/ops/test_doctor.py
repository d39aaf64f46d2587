"""`keepstep doctor` on real folders: what it finds there, and that it leaves nothing."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from keepstep.errors import CouldNotLookError
from keepstep.ops import doctor_probes, doctor_speed
from keepstep.ops.doctor import examine
from keepstep.ops.doctor_ranks import Launched, launched, probe_ranks
from keepstep.ops.doctor_reader import watch
from keepstep.ops.doctor_scratch import PREFIX, scratch_folder
from keepstep.plan.doctor import Level
from keepstep.plan.doctor_facts import Shared, Wishes
from tests.rig.folders import make_checkpoint

SMALL = Wishes(amount=2**20)


def test_a_sound_folder(tmp_path: Path) -> None:
    found = examine(tmp_path, SMALL)
    facts = found.facts
    assert found.fit
    assert [f.topic for f in found.findings if f.level is Level.UNFIT] == []
    assert facts.seen is not None
    assert facts.seen_renamed is not None
    assert not facts.seen_renamed.torn
    assert facts.speed is not None
    assert (facts.speed.size, facts.speed.differs) == (2**20, False)
    assert facts.kind
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert examine(tmp_path / "runs" / "mine", SMALL).fit
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").touch()
    with pytest.raises(CouldNotLookError, match="is no folder"):
        examine(tmp_path / "file", SMALL)


def test_the_size_of_what_is_there(tmp_path: Path) -> None:
    for step in (5, 10):
        make_checkpoint(tmp_path, step)
    (tmp_path / "save-15").mkdir()
    facts = examine(tmp_path, Wishes(amount=0)).facts
    assert facts.checkpoints == 2
    assert facts.checkpoint_size is not None
    assert facts.checkpoint_size > 40_000
    assert facts.speed is None
    assert sorted(os.listdir(tmp_path)) == ["save-10", "save-15", "save-5"]


def test_a_folder_of_runs(tmp_path: Path) -> None:
    for step in (5, 10):
        make_checkpoint(tmp_path / "one", step)
    (tmp_path / "notes").touch()
    facts = examine(tmp_path, Wishes(amount=0)).facts
    assert facts.checkpoints == 0
    assert facts.checkpoint_size == examine(tmp_path / "one", Wishes(amount=0)).facts.checkpoint_size


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *rest: object, **more: object) -> None:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    found = examine(tmp_path, SMALL)
    assert not found.fit
    assert [f.topic for f in found.findings if f.level is Level.UNFIT] == ["write"]


def test_bytes_that_come_back_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = doctor_speed.read_past_cache

    def flipped(path: Path, offset: int, size: int) -> bytes:
        data = bytearray(read(path, offset, size))
        data[-1] ^= 1
        return bytes(data)

    monkeypatch.setattr(doctor_speed, "read_past_cache", flipped)
    found = examine(tmp_path, SMALL)
    assert [f.topic for f in found.findings if f.level is Level.UNFIT] == ["read back"]


def test_a_rename_that_is_a_copy_is_seen_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(source: Path, target: Path) -> None:
        target.mkdir()
        for path in sorted(source.iterdir()):
            time.sleep(0.02)
            os.rename(path, target / path.name)
        source.rmdir()

    monkeypatch.setattr(Path, "rename", copy)
    with doctor_probes.reader() as reader:
        found = reader.rename(tmp_path)
    assert found.seen is not None
    assert found.seen.torn
    assert found.seen.late is not None


def test_the_reader_gives_up_on_what_does_not_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert watch(str(tmp_path / "never"), 0, 1, 0.05) == {"seen": None, "torn": False}
    (tmp_path / "short").write_bytes(b"k")
    assert watch(str(tmp_path / "short"), 0, 2, 0.05) == {"seen": None, "torn": True}
    (tmp_path / "whole").write_bytes(b"kk")
    assert watch(str(tmp_path / "whole"), 0, 2, 0.05)["seen"] is not None
    assert capsys.readouterr().out == "watching\n" * 3


def test_what_a_killed_one_leaves_goes_with_the_next(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from keepstep.ops.doctor_scratch import scratch_folder\n"
        "with scratch_folder(Path(sys.argv[1])): print('in', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "in\n"
        (theirs,) = os.listdir(tmp_path)
        assert theirs.startswith(PREFIX)
        with scratch_folder(tmp_path):
            assert theirs in os.listdir(tmp_path)
        assert os.listdir(tmp_path) == [theirs]  # it lives
        other.send_signal(signal.SIGKILL)
        other.wait(timeout=30)
    with scratch_folder(tmp_path) as own:
        assert os.listdir(tmp_path) == [own.name]
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_told_goes_when_it_is_old(tmp_path: Path) -> None:
    old, new = tmp_path / f"{PREFIX}old", tmp_path / f"{PREFIX}new"
    old.mkdir()
    new.mkdir()
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    with scratch_folder(tmp_path):
        pass
    assert os.listdir(tmp_path) == [new.name]


def ranks(folders: list[Path], seconds: float) -> dict[int, Shared]:
    found: dict[int, Shared] = {}

    def be(rank: int) -> None:
        found[rank] = probe_ranks(folders[rank], Launched(rank, len(folders), "launch"), seconds)

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(len(folders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(found) == list(range(len(folders)))
    return found


def test_ranks_in_one_folder(tmp_path: Path) -> None:
    assert [one.apart for one in ranks([tmp_path] * 3, 30).values()] == [()] * 3
    assert os.listdir(tmp_path) == []


def test_a_rank_in_another_folder(tmp_path: Path) -> None:
    apart = tmp_path / "apart"
    apart.mkdir()
    (tmp_path / "shared").mkdir()
    found = ranks([tmp_path / "shared", tmp_path / "shared", apart], 0.5)
    assert found[0].apart == (2,)
    assert found[2].apart == (0,)
    assert os.listdir(tmp_path / "shared") == os.listdir(apart) == []


def test_what_torchrun_says() -> None:
    assert launched({}) is None
    assert launched({"RANK": "0", "WORLD_SIZE": "1"}) is None
    same = {"WORLD_SIZE": "2", "MASTER_ADDR": "node-1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "a/../b"}
    first, second = launched({"RANK": "0", **same}), launched({"RANK": "1", **same})
    assert first is not None
    assert second is not None
    assert (first.rank, second.rank) == (0, 1)
    assert first.name == second.name
    assert "/" not in first.name
