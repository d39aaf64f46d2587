"""Stop signals to the launcher, to one rank, to everything: one save, exit code 75, and the next start goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.elastic.multiprocessing.api import SignalException

from keepstep.cli.launcher import _passing_on_once
from keepstep.storage.survey import survey
from keepstep.testing.processes import descendants, end_all
from tests.rig import forks, jobs

ROOT = Path(__file__).parents[2]


@contextmanager
def started(folder: Path, nproc: int, **trainer: Any) -> Iterator[subprocess.Popen[str]]:
    """A job that would run for days; whatever comes of the test, none of its processes is left behind."""
    job = jobs.training(folder, 1_000_000, **trainer)
    (folder / "job.yaml").write_text(yaml.safe_dump(job.model_dump(mode="json")))
    command = [sys.executable, "-c", "from keepstep.cli.main import main; main()", "train", str(folder / "job.yaml")]
    process = subprocess.Popen(
        [*command, "--nproc", str(nproc)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"},
    )
    try:
        yield process
    finally:
        end_all(process)  # type: ignore[arg-type]


def steps(folder: Path) -> list[int]:
    return [c.found.step for c in survey(folder / "checkpoints" / "run").complete]


def ranks_of(launcher: int) -> list[int]:
    """The launcher's children that have a rank, by their environment; their own children are loader workers."""
    children = [one.pid for one in descendants(launcher) if one.parent == launcher]
    return [pid for pid in children if b"\0RANK=" in Path(f"/proc/{pid}/environ").read_bytes()]


def wait_for_steps(folder: Path, process: subprocess.Popen[str], count: int = 5) -> None:
    log = folder / "checkpoints" / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not log.exists() or log.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("to", "number"),
    [
        pytest.param("launcher", signal.SIGUSR1, marks=pytest.mark.crash),
        ("everything", signal.SIGTERM),
        pytest.param("launcher", signal.SIGTERM, marks=pytest.mark.crash),
        pytest.param("launcher", signal.SIGINT, marks=pytest.mark.crash),
        pytest.param("everything", signal.SIGINT, marks=pytest.mark.crash),
        pytest.param("everything", signal.SIGUSR1, marks=pytest.mark.crash),
        pytest.param("one rank", signal.SIGTERM, marks=pytest.mark.crash),
        pytest.param("one rank", signal.SIGINT, marks=pytest.mark.crash),
        pytest.param("one rank", signal.SIGUSR1, marks=pytest.mark.crash),
    ],
)
def test_two_ranks_with_loader_workers_leave_with_one_save(tmp_path: Path, to: str, number: signal.Signals) -> None:
    checkpointing = {"save_dir": str(tmp_path / "checkpoints"), "period_steps": 1_000_000, "num_to_keep": 2}
    with started(tmp_path, 2, checkpointing=checkpointing, data={"num_workers": 2}) as process:
        wait_for_steps(tmp_path, process)
        ranks = ranks_of(process.pid)
        family = {one.pid for one in descendants(process.pid)}
        assert len(ranks) == 2
        targets = {"launcher": [process.pid], "one rank": ranks[-1:], "everything": [process.pid, *family]}[to]
        for _ in range(3):
            for pid in targets:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            time.sleep(0.03)
        _, told = process.communicate(timeout=90)
        assert process.returncode == 75, told
        (step,) = steps(tmp_path)
        assert step >= 5
        assert told.count(f"stopped on request after step {step}, which is saved") == 1
        note = json.loads((tmp_path / "checkpoints" / "run" / ".keepstep" / "exit.json").read_text())
        assert (note["outcome"], note["code"], note["saved_step"]) == ("stopped", 75, step)
        assert list(jobs.rows(tmp_path)) == list(range(1, step + 1))
        assert not [pid for pid in family if Path(f"/proc/{pid}").exists()], "a process was left behind"


def test_a_stop_during_the_start_is_no_failure(tmp_path: Path) -> None:
    with started(tmp_path, 1) as process:
        # Python has begun, and torch is being imported; the moment differs from run to run.
        time.sleep(1.0)
        while not _catches(process.pid, signal.SIGTERM):
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
        assert process.returncode == 75, told
        assert "before step 1; nothing was to be saved yet" in told
        assert steps(tmp_path) == []


def _catches(pid: int, number: int) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def test_a_terminal_that_is_closed_is_a_stop_that_ranks_note() -> None:
    def close() -> int:
        with _passing_on_once(["SIGTERM", "SIGHUP"]):
            try:
                os.kill(os.getpid(), signal.SIGHUP)
            except SignalException as stop:
                os.kill(os.getpid(), signal.SIGTERM)  # one that is repeated breaks nothing
                return int(stop.sigval)
        return 0

    assert forks.values(close) == [signal.SIGTERM]
