"""Two watchers beside a fast job that keeps two checkpoints: killed at random moments, with scorers that fail."""

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import keepstep
from keepstep.plan.scores import FILE, FINAL, RETRY
from keepstep.storage.scoring.scores import read_scores, unreadable_lines
from keepstep.storage.survey import survey

SETS = ("task", "canary")

# Notes when it has seen a whole checkpoint; reads all files again after a while; fails now and then.
SCORER = """
import json, os, random, sys, time
checkpoint, name, log = sys.argv[1:]
def note(word):
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{word} {os.path.basename(checkpoint)} {name}\\n".encode())
    os.close(descriptor)
def look():
    return {one: len(open(os.path.join(checkpoint, one), "rb").read()) for one in sorted(os.listdir(checkpoint))}
try:
    before = look()
    note("begun" if "manifest.json" in before else "torn")
    time.sleep(random.random() * 0.05)
    note("whole" if look() == before else "changed")
except FileNotFoundError:
    note("vanished")
    raise
if random.random() < 0.2:
    print(json.dumps({"files": 0}), flush=True)
    sys.exit("out of luck")
print(json.dumps({"files": len(before), "accuracy": random.random()}), flush=True)
"""


class Watchers:
    """Two, of which one is killed now and then and another one started in its place."""

    def __init__(self, run: Path, scorer: Path, log: Path, seed: int, pause: float, hold: str) -> None:
        score = f"{sys.executable} -S {scorer} {{checkpoint}} {{set}} {log}"
        sets = [part for name in SETS for part in ("--set", f"{name}={name}")]
        self._arguments = ["watch", str(run), "--score", score, "--every", "0.05", "--tries", "9", "--pause", "0.02"]
        self._arguments += ["--hold", hold, *sets]
        self._errors = log.with_name("errors")
        self._random, self._pause = random.Random(seed), pause
        self.kills = 0
        self.running = [self._start() for _ in range(2)]

    def _start(self) -> "subprocess.Popen[bytes]":
        code = "from keepstep.cli.main import main; main()"
        with self._errors.open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-c", code, *self._arguments], stdout=subprocess.DEVNULL, stderr=errors
            )

    def kill_while(self, is_going_on: Callable[[], bool]) -> None:
        while is_going_on():
            time.sleep(self._random.random() * self._pause)
            place = self._random.randrange(len(self.running))
            self.running[place].kill()
            self.running[place].wait()
            self.running[place] = self._start()
            self.kills += 1

    def codes(self) -> list[int]:
        return [process.wait(60) for process in self.running]

    def end(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()


def _train(folder: Path, steps: int, seconds: float) -> None:
    state = keepstep.JobState(model=torch.nn.Linear(4, 4))
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=1, num_to_keep=2)
    with keepstep.Checkpointer(config, state, run_name="run", total_steps=steps, handle_signals=False) as checkpointer:
        for step in range(checkpointer.resume() + 1, steps + 1):
            time.sleep(seconds)
            checkpointer.save_if_due(step)


def _run(tmp_path: Path, steps: int, seconds: float, seed: int, pause: float, hold: str) -> tuple[int, int]:
    """Save `steps` times, every so many `seconds`; kill a watcher after `pause` seconds at most, again and again.

    Returns how many watchers were killed, and how many checkpoints were scored."""
    run, log, scorer = tmp_path / "run", tmp_path / "log", tmp_path / "scorer.py"
    scorer.write_text(SCORER)
    training = threading.Thread(target=_train, args=(tmp_path, steps, seconds))
    watchers = Watchers(run, scorer, log, seed, pause, hold)
    try:
        training.start()
        watchers.kill_while(training.is_alive)
        training.join()
        codes = watchers.codes()
    finally:
        watchers.end()
    assert codes == [0, 0], log.with_name("errors").read_text()

    rows = read_scores(run)
    final = Counter(row.key for row in rows if row.outcome in FINAL)
    assert set(final.values()) == {1}
    assert all(row.metrics["files"] for row in rows if row.metrics)  # what a failed try has printed is not taken
    assert (run / FILE).read_bytes().endswith(b"\n")
    assert unreadable_lines(run) == 0
    # All that is left is scored, and so is all that a scorer has had in its hands: a lease outlives its holder.
    scored = {(row.checkpoint, row.set) for row in rows if row.outcome in FINAL}
    assert {(one.path.name, name) for one in survey(run).complete for name in SETS} <= scored
    words = [line.split() for line in log.read_text().splitlines()]
    begun = {(name, set) for word, name, set in words if word == "begun"}
    # Between two tries it is held only where there is a budget for that.
    tried = set() if hold != "0" else {(row.checkpoint, row.set) for row in rows if row.outcome == RETRY}
    assert begun - tried <= scored
    # Nothing was deleted, or not there yet, under a reader.
    assert {word for word, *_ in words} == {"begun", "whole"}
    return watchers.kills, len({row.step for row in rows})


@pytest.mark.parametrize("hold", [pytest.param("0", marks=pytest.mark.soak), "1GB"])
def test_watchers_that_are_killed_score_each_checkpoint_once(tmp_path: Path, hold: str) -> None:
    kills, scored = _run(tmp_path, 20, 0.15, 1, 1.0, hold)
    assert kills > 2
    assert scored > 1


@pytest.mark.soak
@pytest.mark.parametrize("hold", ["0", "1GB"])
@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_checkpoints(tmp_path: Path, seed: int, hold: str) -> None:
    kills, scored = _run(tmp_path, 100, 0.4, seed, 3.0, hold)
    print(f"\n100 checkpoints, num_to_keep 2, hold {hold}: {kills} kills of two watchers, {scored} scored, each once")
    assert kills > 10
    assert scored > (20 if hold != "0" else 5)
