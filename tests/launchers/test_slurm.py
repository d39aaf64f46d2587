"""The scripts of examples/slurm under a real SLURM: preempted, at their limit, cancelled, as an array."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from keepstep.job.train import TrainingJob
from keepstep.storage.survey import survey
from tests.rig import forks, jobs
from tests.rig.slurm import Slurm, cluster, missing, until

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "slurm"
STEPS = 300
pytestmark = [pytest.mark.launchers, pytest.mark.timeout(500), pytest.mark.skipif(bool(missing()), reason=missing())]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    folder = Path(tempfile.mkdtemp(prefix="ks-slurm-"))
    try:
        with cluster(folder) as running:
            running.environment |= {
                "KEEPSTEP": f"{sys.executable} -m keepstep.cli.worker",
                "PYTHONPATH": f"{ROOT}/src:{ROOT}",
                "OMP_NUM_THREADS": "1",
            }
            yield running
    finally:
        shutil.rmtree(folder)


def write_job(folder: Path, total: int = STEPS, **trainer: Any) -> None:
    checkpointing = {"save_dir": str(folder / "checkpoints"), "period_steps": 1_000_000, "num_to_keep": 2}
    providers = {"task": "tests.rig.paced:task"}
    job = jobs.training(folder, total, providers=providers, checkpointing=checkpointing, **trainer)
    (folder / "job.yaml").write_text(yaml.safe_dump(job.model_dump(mode="json")))
    for script in SCRIPTS.glob("*.sbatch"):
        shutil.copy(script, folder)


def submit(slurm: Slurm, folder: Path, script: str, *options: str) -> str:
    words = ("sbatch", "--parsable", "-o", f"{folder}/log-%a.txt", *options, script, "job.yaml")
    return slurm.command(*words, cwd=folder)


def logged(folder: Path, run: str = "run") -> int:
    log = folder / "checkpoints" / run / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def log_of(folder: Path) -> str:
    return "".join(file.read_text() for file in sorted(folder.glob("log-*.txt")))


def await_steps(folder: Path, count: int, run: str = "run") -> None:
    until(lambda: logged(folder, run) >= count, 90, lambda: f"{logged(folder, run)} steps\n{log_of(folder)}")


def undisturbed(folder: Path, total: int = STEPS, **trainer: Any) -> Path:
    forks.values(lambda: TrainingJob(jobs.training(folder, total, **trainer)).run())
    return folder


def test_a_job_that_is_preempted_three_times_is_the_job_that_was_not(slurm: Slurm, tmp_path: Path) -> None:
    whole = undisturbed(tmp_path / "whole")
    write_job(tmp_path)
    job = submit(slurm, tmp_path, "train.sbatch")
    for times in range(3):
        await_steps(tmp_path, 50 * (times + 1))
        slurm.command("scontrol", "requeue", job)
        until(lambda: slurm.field(job, "Restarts") == str(times + 1), 60, lambda: log_of(tmp_path))  # noqa: B023
        assert logged(tmp_path) < STEPS
    slurm.await_state(job, "COMPLETED")
    assert slurm.field(job, "ExitCode") == "0:0"
    assert log_of(tmp_path).count("which is saved; the same command continues") == 3
    assert jobs.state(tmp_path, STEPS) == jobs.state(whole, STEPS)
    assert jobs.rows(tmp_path) == jobs.rows(whole)


def test_the_signal_before_the_limit_saves_and_requeues(slurm: Slurm, tmp_path: Path) -> None:
    whole = undisturbed(tmp_path / "whole")
    write_job(tmp_path)
    job = submit(slurm, tmp_path, "train.sbatch")
    await_steps(tmp_path, 50)
    # What --signal=B:USR1@300 sends, and to whom: the batch shell alone.
    slurm.command("scancel", "--batch", "--signal=USR1", job)
    until(lambda: slurm.field(job, "Restarts") == "1", 60, lambda: log_of(tmp_path))
    (saved,) = [c.found.step for c in survey(tmp_path / "checkpoints" / "run").complete]
    assert 50 <= saved < STEPS
    slurm.await_state(job, "COMPLETED")
    assert f"resumed from step {saved}" in log_of(tmp_path)
    assert jobs.state(tmp_path, STEPS) == jobs.state(whole, STEPS)


def test_a_job_that_is_cancelled_is_saved_and_not_requeued(slurm: Slurm, tmp_path: Path) -> None:
    write_job(tmp_path, 1_000_000)
    job = submit(slurm, tmp_path, "train.sbatch")
    await_steps(tmp_path, 20)
    slurm.command("scancel", job)
    slurm.await_state(job, "CANCELLED")
    # The state changes at once, the save is still to come.
    until(lambda: "which is saved" in log_of(tmp_path), 30, lambda: log_of(tmp_path))
    assert len(survey(tmp_path / "checkpoints" / "run").complete) == 1
    assert slurm.field(job, "Restarts") == "0"


def test_tasks_of_an_array_are_runs_of_their_own(slurm: Slurm, tmp_path: Path) -> None:
    write_job(tmp_path, 60)
    job = submit(slurm, tmp_path, "array.sbatch", "--array=0-1")
    for task in (0, 1):
        slurm.await_state(f"{job}_{task}", "COMPLETED")
    for task in (0, 1):
        run = f"sweep-{task}"
        whole = undisturbed(tmp_path / run, 60, run={"name": run}, determinism={"base_seed": task})
        assert jobs.state(tmp_path, 60, run) == jobs.state(whole, 60, run)
