"""An attempt of a job: it holds its folder, notes how it ended, and begins anew when it is asked to, once."""

import json
from pathlib import Path
from typing import Any

import pytest

from keepstep.errors import KeepstepError, RunInUseError
from keepstep.job.asked import Asked
from keepstep.job.inference import InferenceJob
from keepstep.job.train import TrainingJob
from keepstep.plan.fresh import acts
from keepstep.storage.lock import acquire_lock
from keepstep.storage.survey import survey
from tests.rig import forks, jobs


def run(folder: Path, total: int = 12, *, fresh: bool = False, **trainer: Any) -> None:
    TrainingJob(jobs.training(folder, total, **trainer)).run(asked=Asked(fresh=fresh))


def place(folder: Path) -> Path:
    return folder / "checkpoints" / "run"


def note(folder: Path) -> dict[str, Any]:
    return json.loads((place(folder) / ".keepstep" / "exit.json").read_text())


def steps(folder: Path) -> list[int]:
    return [c.found.step for c in survey(place(folder)).complete]


def attempt_of(checkpoint: Path) -> int:
    return int(json.loads((checkpoint / "manifest.json").read_text())["attempt"])


def test_how_it_ended_is_noted_and_a_finished_run_is_not_touched_again(tmp_path: Path) -> None:
    run(tmp_path)
    assert (note(tmp_path)["outcome"], note(tmp_path)["code"]) == ("finished", 0)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    run(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize("size", [1, 2])
def test_a_failure_is_noted_with_its_code(tmp_path: Path, size: int) -> None:
    def fail() -> None:
        def loss(self: jobs.Task, model: Any, batch: Any) -> Any:
            raise ZeroDivisionError("in the loss")

        jobs.Task.loss = loss
        run(tmp_path)

    assert all(isinstance(end.error, ZeroDivisionError) for end in forks.run(fail, size))
    assert note(tmp_path)["outcome"] == "failed"
    assert "in the loss" in note(tmp_path)["error"]
    assert not list((place(tmp_path) / ".keepstep").glob("lock-*"))


def test_a_second_job_is_refused_before_it_builds_anything(tmp_path: Path) -> None:
    lock = acquire_lock(place(tmp_path))
    providers = {"model": "tests.rig.jobs:broken"}

    def second() -> None:
        TrainingJob(jobs.training(tmp_path, providers=providers)).run()

    (end,) = forks.run(second)
    assert isinstance(end.error, RunInUseError)
    assert "in use by process" in str(end.error)
    assert not (place(tmp_path) / ".keepstep" / "exit.json").exists()
    lock.release()


class TestFresh:
    @pytest.mark.parametrize("size", [1, 2])
    def test_the_old_run_is_set_aside_whole(self, tmp_path: Path, size: int) -> None:
        run(tmp_path, data={"ledger": True})
        (place(tmp_path) / "notes.txt").write_text("mine")
        old = {p.name: p.read_bytes() for p in sorted((place(tmp_path) / "save-12").iterdir())}
        rows = jobs.rows(tmp_path)
        forks.values(lambda: run(tmp_path, 8, fresh=True), size)
        assert steps(tmp_path) == [4, 8]
        assert list(jobs.rows(tmp_path)) == list(range(1, 9))
        (aside,) = (place(tmp_path) / ".keepstep" / "set-aside").iterdir()
        assert {p.name: p.read_bytes() for p in sorted((aside / "save-12").iterdir())} == old
        assert {"save-8", "save-12", "metrics.jsonl", "saves.jsonl", "ledger"} <= {p.name for p in aside.iterdir()}
        assert len((aside / "metrics.jsonl").read_text().splitlines()) == len(rows)
        assert (place(tmp_path) / "notes.txt").read_text() == "mine"
        assert attempt_of(place(tmp_path) / "save-8") > attempt_of(aside / "save-12")

    def test_the_same_submission_acts_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run(tmp_path)
        monkeypatch.setenv("SLURM_JOB_ID", "77")
        run(tmp_path, 8, fresh=True)
        first = (place(tmp_path) / "save-8" / "manifest.json").read_text()
        run(tmp_path, 16, fresh=True)
        assert steps(tmp_path) == [12, 16]
        assert len(list((place(tmp_path) / ".keepstep" / "set-aside").iterdir())) == 1
        assert first
        monkeypatch.setenv("SLURM_JOB_ID", "78")
        run(tmp_path, 4, fresh=True)
        assert steps(tmp_path) == [4]
        assert len(list((place(tmp_path) / ".keepstep" / "set-aside").iterdir())) == 2

    def test_without_a_scheduler_an_interrupted_run_goes_on_and_a_finished_one_begins_anew(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        run(tmp_path)

        def killed() -> None:
            original = jobs.Task.loss

            def loss(self: jobs.Task, model: Any, batch: Any) -> Any:
                if self.seen >= 24:
                    import os

                    os.kill(os.getpid(), 9)
                return original(self, model, batch)

            jobs.Task.loss = loss
            run(tmp_path, 12, fresh=True)

        (end,) = forks.run(killed)
        assert end.killed
        assert steps(tmp_path) == [4]
        run(tmp_path, 12, fresh=True)
        assert "--fresh was acted on already" in caplog.text
        assert list(jobs.rows(tmp_path)) == list(range(1, 13))
        run(tmp_path, 8, fresh=True)
        assert steps(tmp_path) == [4, 8]

    def test_a_run_of_which_nothing_good_is_left_begins_anew_only_then(self, tmp_path: Path) -> None:
        run(tmp_path)
        for checkpoint in place(tmp_path).glob("save-*"):
            (checkpoint / "manifest.json").write_text("{")
        with pytest.raises(KeepstepError, match="no checkpoint is complete"):
            run(tmp_path)
        run(tmp_path, fresh=True)
        assert steps(tmp_path) == [8, 12]

    def test_an_inference_job(self, tmp_path: Path) -> None:
        for _ in range(2):
            InferenceJob(jobs.inference(tmp_path)).run(asked=Asked(fresh=True))
        assert len((tmp_path / "sums.jsonl").read_text().splitlines()) == 50
        (aside,) = (tmp_path / "inference" / ".keepstep" / "set-aside").iterdir()
        assert [p.name for p in aside.glob("save-*")]


@pytest.mark.parametrize(
    ("record", "submission", "finished", "expected"),
    [
        (None, None, False, True),
        ({"submission": "1"}, "1", True, False),
        ({"submission": "1"}, "2", False, True),
        ({"submission": None}, "2", False, True),
        ({"submission": "1"}, None, False, True),
        ({"submission": None}, None, False, False),
        ({"submission": None}, None, True, True),
    ],
)
def test_when_a_request_for_a_fresh_start_is_a_new_one(
    record: dict[str, Any] | None, submission: str | None, finished: bool, expected: bool
) -> None:
    assert acts(record, submission, finished=finished) is expected
