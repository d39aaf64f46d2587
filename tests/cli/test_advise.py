"""`keepstep advise` as a person meets it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from keepstep.plan import layout
from keepstep.storage.exit_note import write_exit
from keepstep.storage.save_log import SaveLog
from tests.rig.command import keepstep
from tests.rig.folders import make_checkpoint
from tests.rig.report_runs import commit

WORK = {"steps": 100, "steps_seconds": 200.0}


def log(folder: Path, failures: int, *, lost: float = 30.0, saves: int = 30) -> SaveLog:
    """Attempts of which all but the last were killed. A step takes 2 seconds, 100 are made between two saves."""
    found = SaveLog(folder)
    for attempt in range(1, failures + 2):
        found.started((attempt - 1) * saves * 100, attempt, 60.0, 2)
        for number in range(saves):
            found.saved(
                step=((attempt - 1) * saves + number + 1) * 100,
                attempt=attempt,
                mode="sync",
                seconds=lost,
                commit_seconds=1.0,
                ranks=[{"bytes": 1, "write": 1.0, "sync": 0.0}] * 2,
                straggler=None,
                work={"lost_seconds": lost, **WORK},
            )
    found.ended((failures + 1) * saves * 100, failures + 1, "finished", {"steps": 0, "steps_seconds": 0.0})
    return found


def facts(*arguments: Any) -> dict[str, Any]:
    done = keepstep("advise", *map(str, arguments), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_is_printed(tmp_path: Path) -> None:
    log(tmp_path, 2)
    done = keepstep("advise", str(tmp_path), "--max-loss-minutes", "60")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "a step        2 s",
        "a save        30 s lost",
        "a restart     60 s until the end of its first step",
        "failures      2 in 5.8 h of 3 attempts",
    ]
    assert lines[4].startswith("at present    every 100 steps (3.33 min): a day loses 3.48 h, 14 % (saves 3.08 h, ")
    assert lines[5].startswith("advised       every 386 steps (12.9 min): a day loses 114 min, 7.9 % (saves ")
    assert "work done again" in lines[5]
    assert lines[6] == "  386 steps (12.9 min) cost least where a save costs 30 s and a failure comes every 2.9 h"


def test_what_a_crash_may_cost_is_taken_from_the_job(tmp_path: Path) -> None:
    log(tmp_path, 2)
    commit(tmp_path, 100, config={"trainer": {"checkpointing": {"max_loss_minutes": 2.5}}})
    assert (facts(tmp_path)["advice"]["period_steps"], facts(tmp_path)["advice"]["is_bounded"]) == (60, True)
    assert facts(tmp_path, "--max-loss-minutes", 60)["advice"]["is_bounded"] is False


def test_json(tmp_path: Path) -> None:
    log(tmp_path, 2)
    found = facts(tmp_path)
    costs = {"step_seconds": 2.0, "save_seconds": 30.0, "commit_delay_seconds": 0.0, "restart_seconds": 60.0}
    assert found["costs"] == {**costs, "mtbf_seconds": 10440.0}
    assert (found["failures"]["failures"], found["failures"]["attempts"], found["present_steps"]) == (2, 3, 100)
    assert found["advice"]["loss"]["total"] < found["present_loss"]["total"]
    assert found["advice"]["is_bounded"] is False


def test_what_is_given_counts_in_place_of_what_was_seen(tmp_path: Path) -> None:
    log(tmp_path, 2)
    free = facts(tmp_path, "--mtbf", "4d", "--max-loss-minutes", 600)
    assert (free["costs"]["mtbf_seconds"], free["is_mtbf_given"]) == (4 * 86400.0, True)
    bounded = facts(tmp_path, "--mtbf", "4d")
    assert (bounded["advice"]["period_steps"], bounded["advice"]["is_bounded"]) == (435, True)
    assert bounded["advice"]["optimum_steps"] == free["advice"]["period_steps"] > 435
    cheap = facts(tmp_path, "--step-seconds", 0.5, "--save-seconds", 0)
    assert (cheap["costs"]["step_seconds"], cheap["advice"]["period_steps"]) == (0.5, 1)
    text = keepstep("advise", str(tmp_path), "--mtbf", "6h").stdout
    assert "failures      one every 6 h, as given (seen: 2 in 5.8 h of 3 attempts)" in text


def test_without_a_failure_the_bound_decides_and_that_is_said(tmp_path: Path) -> None:
    log(tmp_path, 0)
    text = keepstep("advise", str(tmp_path)).stdout
    assert "failures      0 in 116 min of 1 attempt" in text
    assert "advised       every 435 steps" in text
    assert "no failure rate is known" in text
    assert "what crashes cost is left out: none was seen" in text


def test_the_last_attempt_counts_when_it_is_known_to_have_failed(tmp_path: Path) -> None:
    log(tmp_path, 1).started(6000, 3, 60.0, 2)
    assert facts(tmp_path)["failures"]["failures"] == 1
    write_exit(tmp_path, "failed", 1)
    assert facts(tmp_path)["failures"]["failures"] == 2


def test_the_present_period_of_auto_is_its_last(tmp_path: Path) -> None:
    log(tmp_path, 1).period_changed(6000, 2, 100, 250, "a reason")
    assert facts(tmp_path)["present_steps"] == 250


def _dated(run: Path, step: int, minute: int) -> None:
    record = make_checkpoint(run, step) / layout.RUN_RECORD
    record.write_text(json.dumps({"step": step, "attempt": 1, "created_at": f"2026-01-01T00:{minute:02}:00Z"}))


def test_without_a_log_run_records_tell_how_long_steps_take(tmp_path: Path) -> None:
    for number in range(4):
        _dated(tmp_path, (number + 1) * 30, number * 5)
    done = keepstep("advise", str(tmp_path))
    assert done.returncode == 2
    assert "saves.jsonl is not there, to tell what the job loses by a save: give --save-seconds" in done.stderr
    found = facts(tmp_path, "--save-seconds", 20, "--mtbf", "6h")
    assert (found["costs"]["step_seconds"], found["present_steps"]) == (10.0, 30)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--mtbf", "often"], "--mtbf: 'often' is no length of time"),
        (["--max-loss-minutes", "0"], "--max-loss-minutes 0: must be more than 0"),
        (["--step-seconds", "-1"], "--step-seconds -1: must be more than 0"),
        (["--save-seconds", "nan"], "--save-seconds nan: must be 0 or more"),
        (["--max-loss-minutes", "1e308"], "--max-loss-minutes 1e+308: must be 1e-09 to 5.256e+06"),
        (["--step-seconds", "1e-310"], "--step-seconds 1e-310: must be 1e-09 to"),
        (["--save-seconds", "1e300"], "--save-seconds 1e+300: must be 0 to"),
        (["--mtbf", "9" * 300 + "d"], "--mtbf 8.64e+304: must be 1e-09 to 1e+12"),
        ([], "is not there, to tell how long a step takes: give --step-seconds"),
        (["--step-seconds", "1"], "what the job loses by a save: give --save-seconds"),
    ],
)
def test_what_does_not_work_is_said_with_what_to_do(tmp_path: Path, arguments: list[str], problem: str) -> None:
    done = keepstep("advise", str(tmp_path), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_no_log_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "saves.jsonl")
    done = keepstep("advise", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "it is no regular file" in done.stderr


def test_a_loss_of_all_is_100_percent(tmp_path: Path) -> None:
    log(tmp_path, 2)
    assert ", 100 % (saves" in keepstep("advise", str(tmp_path), "--step-seconds", "1e-3").stdout


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    done = keepstep("advise", str(tmp_path / "nowhere"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no such folder" in done.stderr
