"""A run and its mirror, a folder here; other kinds of stores behave alike (tests/storage/stores), and fail in more ways
(tests/crash/test_mirrors.py)."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import keepstep
from keepstep.errors import CheckpointNotFoundError, CouldNotLookError, DamagedCheckpointError, KeepstepError
from keepstep.storage.stored import survey_store
from keepstep.storage.stores.folder import FolderStore
from tests.rig import forks, tiny


def stop_at(stop: int) -> Any:
    def on_step(step: int) -> None:
        if step == stop:
            raise keepstep.StopRequested("as a machine that goes, and gives time to upload")

    return on_step


class Rig:
    """The tiny job with a mirror, and a twin that had none and was never stopped."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.run, self.mirror = base / "a" / "tiny", base / "mirror"
        self.job = tiny.Tiny(str(base / "a"), period=5, keep=2, log=str(base / "log"), mirror=f"file://{self.mirror}")

    def train(self, size: int = 1, **more: Any) -> list[dict[str, Any]]:
        """Train to the end."""
        job = replace(self.job, total=20, **more)
        return forks.values(lambda: tiny.train(job), size) if size > 1 else [tiny.train(job)]

    def until(self, step: int, size: int = 1, **more: Any) -> None:
        """Train up to a checkpoint and some steps beyond, and leave in order."""
        job = replace(self.job, total=20, on_step=stop_at(step + 2), **more)
        for ended in forks.run(lambda: tiny.train(job), size):
            assert isinstance(ended.error, keepstep.StopRequested), ended

    def twin(self, size: int = 1) -> list[dict[str, Any]]:
        job = tiny.Tiny(str(self.base / "twin"), total=20, period=5)
        return forks.values(lambda: tiny.train(job), size) if size > 1 else [tiny.train(job)]

    def wipe(self) -> None:
        shutil.rmtree(self.base / "a")

    def stored(self) -> list[int]:
        return [one.found.step for one in survey_store(FolderStore(self.mirror), "tiny").complete]

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run / "saves.jsonl").read_text().splitlines()]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def spoil(path: Path, at: int = 100) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_what_is_saved_is_on_the_mirror_when_the_job_ends(rig: Rig) -> None:
    rig.train()

    assert rig.stored()[-2:] == [15, 20]
    assert sorted(path.name for path in rig.run.glob("save-*")) == ["save-15", "save-20"]
    assert {(row["step"], row["outcome"]) for row in rig.log()} >= {(20, "saved"), (20, "mirrored"), (15, "mirrored")}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("fetch", ["download", "ranges"])
def test_a_run_whose_disk_is_gone_goes_on_from_the_mirror(rig: Rig, size: int, fetch: str) -> None:
    mirror = {"address": f"file://{rig.mirror}", "fetch": fetch}
    rig.job = replace(rig.job, mirror=mirror)
    rig.until(10, size)
    assert rig.stored()[-1] == 10
    rig.wipe()

    again = rig.train(size)

    twin = rig.twin(size)
    assert [one.pop("start") for one in again] == [10] * size
    assert [one.pop("start") for one in twin] == [0] * size
    assert again == twin


def test_a_job_with_another_number_of_ranks_takes_it_up(rig: Rig) -> None:
    rig.until(10, 2)
    rig.wipe()

    assert rig.train()[0]["start"] == 10


def test_what_is_here_and_newer_is_not_fetched(rig: Rig) -> None:
    rig.until(10)
    shutil.rmtree(rig.mirror / "tiny" / "save-10")

    assert rig.train()[0]["start"] == 10


def test_a_step_that_was_asked_for_is_fetched(rig: Rig) -> None:
    rig.until(15)
    rig.wipe()

    assert rig.train(resume_step=10)[0]["start"] == 10
    assert rig.stored()[-1] == 20


def test_a_step_that_nobody_has_is_not_found(rig: Rig) -> None:
    rig.until(10)

    with pytest.raises(CheckpointNotFoundError, match="7"):
        rig.train(resume_step=7)


def test_after_going_back_the_mirror_does_not_bring_the_line_that_was_left(rig: Rig) -> None:
    rig.until(15)
    rig.until(11, resume_step=10, period=1)
    assert rig.stored()[-1] == 15
    rig.wipe()

    assert rig.train()[0]["start"] == 12


def test_a_mirror_that_cannot_be_asked_is_no_empty_one(rig: Rig) -> None:
    rig.mirror.write_text("a file where the folder should be")

    with pytest.raises(CouldNotLookError, match="fetch: never"):
        rig.train()
    assert not rig.run.exists()


def test_fetch_never_goes_on_with_what_is_here(rig: Rig) -> None:
    rig.until(10)
    rig.job = replace(rig.job, mirror={"address": f"file://{rig.mirror}", "fetch": "never", "wait_seconds": 1})
    rig.wipe()

    assert rig.train()[0]["start"] == 0


def test_damage_here_is_repaired_from_the_mirror(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.until(15)
    spoil(rig.run / "save-15" / "__0_0.distcp")

    again = rig.train()
    twin = rig.twin()

    assert [one.pop("start") for one in (*again, *twin)] == [15, 0]
    assert again == twin
    assert "was repaired from file://" in caplog.text
    assert [path.name for path in (rig.run / ".keepstep/quarantine").iterdir() if path.is_dir()] == ["save-15.2"]


def test_a_file_that_is_missing_here_is_repaired_from_the_mirror(rig: Rig) -> None:
    rig.until(15)
    (rig.run / "save-15" / "__0_0.distcp").unlink()

    assert rig.train()[0]["start"] == 15


@pytest.mark.parametrize("fetch", ["download", "ranges"])
def test_of_damage_there_the_one_before_is_taken(rig: Rig, fetch: str, caplog: pytest.LogCaptureFixture) -> None:
    rig.until(15)
    spoil(rig.mirror / "tiny" / "save-15" / "__0_0.distcp")
    rig.wipe()
    rig.job = replace(rig.job, mirror={"address": f"file://{rig.mirror}", "fetch": fetch})

    again = rig.train()
    twin = rig.twin()

    assert [one.pop("start") for one in (*again, *twin)] == [10, 0]
    assert again == twin
    assert "save-15 is damaged" in caplog.text
    assert not [path for path in rig.run.iterdir() if "tmp" in path.name]


def test_where_all_is_damaged_nothing_starts_over(rig: Rig) -> None:
    rig.until(5)
    spoil(rig.run / "save-5" / "__0_0.distcp")
    spoil(rig.mirror / "tiny" / "save-5" / "__0_0.distcp")

    with pytest.raises(DamagedCheckpointError):
        rig.train()


def test_a_partial_copy_is_never_the_newest(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.until(15)
    (rig.mirror / "tiny" / "save-15" / "manifest.json").unlink()
    rig.wipe()

    assert rig.train()[0]["start"] == 10
    assert "save-15: it has no manifest" in caplog.text
    assert rig.stored()[-2:] == [15, 20]


def test_of_two_mirrors_the_one_with_the_newer_counts_and_both_get_all(rig: Rig) -> None:
    other = f"file://{rig.base / 'other'}"
    rig.until(10)
    rig.job = replace(rig.job, mirror=(rig.job.mirror, {"address": other, "num_to_keep": 1}))
    rig.wipe()

    assert rig.train()[0]["start"] == 10
    assert [c.found.step for c in survey_store(FolderStore(rig.base / "other"), "tiny").complete] == [20]
    assert rig.stored()[-1] == 20


def test_a_mirror_that_fails_stops_nothing(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    job = replace(
        rig.job, total=20, on_step=_break(rig.mirror, 7), mirror={"address": rig.job.mirror, "wait_seconds": 2}
    )

    assert tiny.train(job)["start"] == 0
    assert any(row["outcome"] == "not mirrored" for row in rig.log())
    assert "not all checkpoints are on file://" in caplog.text
    assert "keepstep push" in caplog.text


def _break(mirror: Path, at: int) -> Any:
    def on_step(step: int) -> None:
        if step == at:
            shutil.rmtree(mirror, ignore_errors=True)
            mirror.write_text("no folder")

    return on_step


def test_what_a_job_could_not_upload_the_next_one_does(rig: Rig) -> None:
    rig.job = replace(rig.job, mirror={"address": rig.job.mirror, "wait_seconds": 0})
    rig.until(10)
    rig.job = replace(rig.job, mirror={"address": rig.job.mirror["address"], "wait_seconds": 60})
    rig.train()

    assert rig.stored()[-2:] == [15, 20]


def test_a_job_that_never_saves_reads_the_mirror_and_writes_nothing(rig: Rig) -> None:
    rig.until(10)
    rig.wipe()
    before = sorted(path for path in rig.mirror.rglob("*"))

    assert rig.train(period="disable")[0]["start"] == 10
    assert not rig.run.exists()
    assert sorted(path for path in rig.mirror.rglob("*")) == before


def test_an_error_of_the_loop_is_not_hidden_by_the_wait(rig: Rig) -> None:
    class Broken(Exception):
        pass

    def fail(step: int) -> None:
        if step == 7:
            raise Broken

    with pytest.raises(Broken):
        tiny.train(replace(rig.job, on_step=fail))


def test_errors_are_keepsteps(rig: Rig) -> None:
    rig.mirror.write_text("a file")

    with pytest.raises(KeepstepError):
        rig.train()
