"""`keepstep watch` as a person meets it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keepstep.plan.scores import SCORED
from keepstep.storage.leases import held_steps
from keepstep.storage.scoring.scores import read_scores
from tests.rig.command import keepstep
from tests.rig.folders import make_checkpoint

SCORE = f'{sys.executable} -S -c "import sys; print(\'{{\\"path\\": %d}}\' % len(sys.argv[1]))" {{checkpoint}}'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (5, 10):
        make_checkpoint(tmp_path / "run", step)
    return tmp_path / "run"


def test_once(run: Path) -> None:
    done = keepstep("watch", str(run), "--score", SCORE, "--once")
    assert (done.returncode, done.stdout) == (0, "scored 2, failed 0\n"), done.stderr
    assert "scored save-10 on task: path" in done.stderr
    assert {row.metrics["path"] for row in read_scores(run)} == {float(len(f"{run}/save-5")), len(f"{run}/save-10")}
    facts = keepstep("watch", str(run), "--score", SCORE, "--once", "--json")
    assert json.loads(facts.stdout) == {"scored": 0, "failed": 0, "gone": 0, "failed_before": 0}


def test_failures_are_an_exit_code(run: Path) -> None:
    done = keepstep("watch", str(run), "--score", "false {checkpoint}", "--once", "--tries", "2", "--pause", "0.01")
    assert (done.returncode, done.stdout) == (1, "scored 0, failed 2\n")
    assert "again in 0.01 seconds" in done.stderr
    same = keepstep("watch", str(run), "--score", SCORE, "--once")
    assert (same.returncode, same.stdout) == (1, "scored 0, failed 0; 2 had failed before (--retry-failed)\n")
    again = keepstep("watch", str(run), "--score", SCORE, "--once", "--retry-failed")
    assert (again.returncode, again.stdout) == (0, "scored 2, failed 0\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "say how to score"),
        (("--score", "python evaluate.py"), "no {checkpoint}"),
        (("--score", SCORE, "--set", "canary"), "--set name=value"),
        (("--score", SCORE, "--once", "--follow"), "exclude each other"),
        (("--score", SCORE, "--hold", "much"), "no size"),
    ],
)
def test_what_cannot_work_is_one_line(run: Path, words: tuple[str, ...], told: str) -> None:
    done = keepstep("watch", str(run), *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_the_scorer_and_gives_all_up(run: Path, tmp_path: Path, number: signal.Signals) -> None:
    note = tmp_path / "begun"
    score = f"{sys.executable} -S -c \"import sys, time; open('{note}', 'w'); time.sleep(60)\" {{checkpoint}}"
    code = "from keepstep.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "watch", str(run), "--score", score, "--follow"],
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not note.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert held_steps(run) == {10}
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 75
    assert "start it again to go on" in said
    assert "Traceback" not in said
    assert held_steps(run) == frozenset()
    assert read_scores(run) == ()
    assert keepstep("watch", str(run), "--score", SCORE, "--once").stdout == "scored 2, failed 0\n"


def test_a_run_on_an_object_store(run: Path, tmp_path: Path, s3: str) -> None:
    keepstep("push", str(run), f"{s3}/watched", "--step", "5", "--step", "10")
    code = "import os, sys; print('{\\\"n\\\": %d}' % len(os.listdir(sys.argv[1])))"
    score = f'{sys.executable} -S -c "{code}" {{checkpoint}}'
    words = ("watch", f"{s3}/watched/run", "--score", score, "--once", "--tries", "1")
    assert "--scores" in keepstep(*words).stderr
    done = keepstep(*words, "--scores", str(tmp_path / "scores"))
    assert (done.returncode, done.stdout) == (0, "scored 2, failed 0\n"), done.stderr
    rows = read_scores(tmp_path / "scores")
    assert [(row.step, row.outcome, row.metrics) for row in rows] == [(10, SCORED, {"n": 5.0}), (5, SCORED, {"n": 5.0})]
    # The same checkpoints, so they are known in the folder too.
    assert keepstep("watch", str(run), "--score", score, "--once", "--scores", str(tmp_path / "scores")).stdout == (
        "scored 0, failed 0\n"
    )
