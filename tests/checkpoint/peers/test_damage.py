"""Files that are damaged or gone on some of the machines: taken from others, or said to be nowhere."""

import errno
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import keepstep
from keepstep.checkpoint.peers import files
from keepstep.checkpoint.peers.hosts import HOST_VARIABLE
from keepstep.errors import CheckpointNotFoundError, ConfigError, DamagedCheckpointError, RunInUseError, SaveError
from keepstep.storage.lock import acquire_lock
from keepstep.storage.survey import survey
from tests.rig import forks, tiny
from tests.rig.machines import BATCH, Machines, without_start

JOB = tiny.Tiny("", total=6, period=3)
THREE = (1, 1, 1)
OTHERS = [(1,), (1, 1), (2, 1, 1)]


def trained(tmp_path: Path, sizes: tuple[int, ...] = THREE) -> Machines:
    machines = Machines(tmp_path, sizes)
    machines.values(JOB)
    return machines


def resumed(machines: Machines, step: int | None = None) -> set[int]:
    return {one["start"] for one in machines.values(replace(JOB, resume_step=step))}


def refused(machines: Machines, kind: type[Exception], step: int | None = None) -> str:
    ended = machines.run(replace(JOB, resume_step=step))
    texts = {re.sub(rf"{machines.folder}/[a-z]/", "", str(one.error)) for one in ended}
    assert {type(one.error) for one in ended} == {kind}
    assert len(texts) == 1
    return texts.pop()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_copy_is_taken_from_the_other_holder(tmp_path: Path) -> None:
    machines = trained(tmp_path)
    good, bad = (machines.run_folder(name) / "save-6" / "__0_0.distcp" for name in "ab")
    damage(bad)
    assert resumed(machines) == {6}
    assert bad.read_bytes() == good.read_bytes()


def test_what_is_damaged_on_all_machines_costs_a_period(tmp_path: Path) -> None:
    machines = trained(tmp_path)
    for name in "ab":
        damage(machines.run_folder(name) / "save-6" / "__0.index")
    ended = machines.values(JOB)
    assert {one["start"] for one in ended} == {3}
    twin = replace(JOB, save_dir=str(tmp_path / "twin"), batch=BATCH)
    assert without_start(ended) == without_start(forks.values(lambda: tiny.train(twin), 3))
    for name in "abc":
        assert {c.found.step for c in survey(machines.run_folder(name)).checkpoints} == {3, 6}


def test_two_neighbours_that_are_lost_cost_what_only_they_held(tmp_path: Path) -> None:
    machines = trained(tmp_path)
    machines.wipe("a", "b")
    before = sorted(machines.run_folder("c").rglob("*"))
    text = refused(machines, DamagedCheckpointError)
    assert "save-6: __0.index, __0_0.distcp (of rank 0) on no host" in text
    assert sorted(machines.run_folder("c").rglob("*")) == before
    assert not (tmp_path / "a" / "tiny").exists()


@pytest.mark.crash
def test_what_two_lost_machines_did_not_hold_alone_is_there(tmp_path: Path) -> None:
    machines = trained(tmp_path, (1, 1, 1, 1))
    machines.wipe("a", "c")
    assert resumed(machines) == {6}


@pytest.mark.crash
def test_an_older_step_that_can_be_put_together_is_taken(tmp_path: Path) -> None:
    machines = trained(tmp_path)
    for name in "ab":
        (machines.run_folder(name) / "save-6" / "__0_0.distcp").unlink()
    assert resumed(machines) == {3}


def test_a_step_that_is_asked_for(tmp_path: Path) -> None:
    machines = trained(tmp_path)
    machines.wipe("b")
    assert "steps that the hosts can put together: 6, 3" in refused(machines, CheckpointNotFoundError, 5)
    assert resumed(machines, 3) == {3}


@pytest.mark.parametrize("manifest", ["", pytest.param("{}", marks=pytest.mark.crash)])
def test_a_manifest_that_is_damaged_on_one_machine(tmp_path: Path, manifest: str) -> None:
    machines = trained(tmp_path)
    (machines.run_folder("b") / "save-6" / "manifest.json").write_text(manifest)
    assert resumed(machines) == {6}
    kept = list((machines.run_folder("b") / ".keepstep" / "set-aside").iterdir())
    assert [path.name for path in kept] == ["save-6-2"]


@pytest.mark.parametrize("sizes", [(1, 2), *(pytest.param(other, marks=pytest.mark.crash) for other in OTHERS)])
def test_it_goes_on_with_other_machines_and_ranks(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    machines = trained(tmp_path, (2, 2))
    machines.wipe("b")
    other = Machines(tmp_path, sizes, names="acde")
    ended = other.values(JOB)
    assert {one["start"] for one in ended} == {6}
    whole = forks.values(lambda: tiny.train(replace(JOB, save_dir=str(tmp_path / "twin"), batch=BATCH)), 4)
    assert [one["model"] for one in ended] == [whole[0]["model"]] * sum(sizes)


def test_all_machines_new_is_a_fresh_start(tmp_path: Path) -> None:
    assert resumed(Machines(tmp_path, THREE)) == {0}


def test_a_stale_machine_that_comes_back_does_not_win(tmp_path: Path) -> None:
    machines = trained(tmp_path, (1, 1))
    shutil.copytree(tmp_path / "b", tmp_path / "old")
    machines.values(replace(JOB, resume_step=3, total=5, period=1))
    machines.wipe("b")
    (tmp_path / "old").rename(tmp_path / "b")
    assert "save-6" in os.listdir(machines.run_folder("b"))
    assert {one["start"] for one in machines.values(replace(JOB, total=5, period=1))} == {5}


def test_attempts_have_one_number_on_all_machines(tmp_path: Path) -> None:
    machines = Machines(tmp_path, THREE)
    (machines.run_folder("b") / ".save-3.tmp-7").mkdir(parents=True)
    machines.values(JOB)
    for name in "abc":
        found = survey(machines.run_folder(name)).checkpoints
        assert {c.manifest.attempt for c in found if c.manifest is not None} == {8}


def test_one_machine_that_is_in_use_refuses_the_job_on_all(tmp_path: Path) -> None:
    machines = Machines(tmp_path, THREE)
    lock = acquire_lock(machines.run_folder("b"))
    try:
        assert f"in use by process {os.getpid()} on " in refused(machines, RunInUseError)
    finally:
        lock.release()
    assert resumed(machines) == {0}


def test_one_folder_that_several_machines_see_is_refused(tmp_path: Path) -> None:
    machines = Machines(tmp_path, (1, 1))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a")
    assert "a and b see one folder" in refused(machines, ConfigError)


def test_a_full_disk_on_the_peer_is_told_to_all_and_nothing_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = Machines(tmp_path, (1, 1))

    class Full(files.DurableFile):
        def write(self, data: Any) -> int:
            if os.environ[HOST_VARIABLE] == "b":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    with monkeypatch.context() as patched:
        patched.setattr(files, "DurableFile", Full)
        text = refused(machines, SaveError)
    assert "copying to the peers failed on rank 1" in text
    assert "No space left" in text
    for name in "ab":
        left = {path.name for path in machines.run_folder(name).iterdir()}
        assert left <= {".keepstep", "saves.jsonl"}


def test_a_file_that_changes_on_its_way_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = files.TakenFile.take

    def take(self: files.TakenFile, piece: memoryview) -> None:
        piece[0] ^= 1
        original(self, piece)

    monkeypatch.setattr(files.TakenFile, "take", take)
    text = refused(Machines(tmp_path, (1, 1)), SaveError)
    assert "did not come from rank" in text


def test_a_lone_machine_saves_without_copies(tmp_path: Path) -> None:
    machines = trained(tmp_path, (2,))
    assert resumed(machines) == {6}
    assert machines.steps("a") == [3, 6]


def test_a_mirror_beside_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="do not go together"):
        keepstep.CheckpointingConfig(
            save_dir=str(tmp_path), period_steps=1, peer_copies=1, mirror=f"file://{tmp_path}/mirror"
        )


def test_damage_to_the_newest_is_an_error_where_that_is_wanted(tmp_path: Path) -> None:
    machines = trained(tmp_path)
    for name in "ab":
        damage(machines.run_folder(name) / "save-6" / "__0_0.distcp")

    def resume() -> int:
        name = machines.name(forks.world.rank)
        os.environ[HOST_VARIABLE] = name
        config = keepstep.CheckpointingConfig(
            save_dir=str(tmp_path / name), period_steps=3, peer_copies=1, on_damage="stop"
        )
        state = keepstep.JobState(model=nn.Linear(2, 2))
        with keepstep.Checkpointer(config, state, "tiny", world=forks.world) as saver:
            return saver.resume()

    for ended in forks.run(resume, 3):
        assert isinstance(ended.error, DamagedCheckpointError)
        assert "files of it are damaged" in str(ended.error)
