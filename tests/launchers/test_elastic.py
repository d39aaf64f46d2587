"""Torch elastic: workers that are killed, hosts that go and come; each sample is consumed once."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from keepstep.job.train import TrainingJob
from keepstep.testing.processes import descendants, end_all
from tests.rig import forks, jobs
from tests.rig.command import keepstep
from tests.rig.hosts import hosts, missing
from tests.rig.slurm import until

ROOT = Path(__file__).parents[2]
STEPS = 300
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--monitor-interval", "0.2"]
pytestmark = [pytest.mark.launchers, pytest.mark.timeout(400)]


def write_job(folder: Path, **trainer: Any) -> Path:
    settings: dict[str, Any] = {
        "batching": {"global_batch_size": 12, "microbatch_size": 1},
        "data": {"ledger": True},
        "checkpointing": {"save_dir": str(folder / "checkpoints"), "period_steps": 20, "num_to_keep": 2},
    }
    job = jobs.training(folder, STEPS, providers={"task": "tests.rig.paced:task"}, **settings, **trainer)
    (folder / "job.yaml").write_text(yaml.safe_dump(job.model_dump(mode="json")))
    return folder / "job.yaml"


@contextmanager
def started(command: Sequence[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    variables = {**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "OMP_NUM_THREADS": "1", **environment}
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=variables, start_new_session=True)
    try:
        yield process
    finally:
        end_all(process)


def steps(folder: Path) -> int:
    log = folder / "checkpoints" / "run" / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def await_steps(folder: Path, count: int) -> None:
    until(lambda: steps(folder) >= count, 120, lambda: f"{steps(folder)} steps\n{logs(folder)}")


def logs(folder: Path) -> str:
    return "".join(f"== {file.name}\n{file.read_text()}" for file in sorted(folder.glob("*.log")))


def attempts(folder: Path) -> list[str]:
    """What each attempt said of where it began, in order."""
    lines = [line for line in logs(folder).splitlines() if "resumed from step" in line or "starting from" in line]
    return [line.partition("INFO ")[2] for line in lines]


def each_sample_was_consumed_once(folder: Path) -> None:
    done = keepstep("audit", str(folder / "checkpoints" / "run"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(jobs.rows(folder)) == list(range(1, STEPS + 1))


def ranks_below(launcher: int) -> list[int]:
    children = [one.pid for one in descendants(launcher) if one.parent == launcher]
    return sorted(pid for pid in children if b"\0RANK=" in Path(f"/proc/{pid}/environ").read_bytes())


def test_one_worker_of_four_is_killed_under_torchrun(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "4", "--max-restarts", "3", "--module"]
    with started([*command, "keepstep.cli.worker", "train", str(job)], tmp_path / "a.log") as launcher:
        await_steps(tmp_path, 50)
        os.kill(ranks_below(launcher.pid)[2], signal.SIGKILL)
        launcher.wait(150)
    assert launcher.returncode == 0, logs(tmp_path)
    first, second = attempts(tmp_path)
    assert first == "starting from the first step"
    assert "resumed from step" in second
    each_sample_was_consumed_once(tmp_path)


def test_restarts_of_keepsteps_own_launcher_end_in_the_same_state(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    command = [sys.executable, "-m", "keepstep.cli.worker", "train", str(job), "--nproc", "2", "--restarts", "2"]
    with started(command, tmp_path / "a.log") as launcher:
        for kills in (1, 2):
            await_steps(tmp_path, 60 * kills)
            before = ranks_below(launcher.pid)
            os.kill(before[kills - 1], signal.SIGKILL)
            until(lambda: not set(before) & set(ranks_below(launcher.pid)), 60, lambda: logs(tmp_path))  # noqa: B023
        launcher.wait(150)
    assert launcher.returncode == 0, logs(tmp_path)
    assert "starting again: it failed in training; restart 2 of 2" in logs(tmp_path)
    each_sample_was_consumed_once(tmp_path)
    whole = tmp_path / "whole"
    settings = {"batching": {"global_batch_size": 12, "microbatch_size": 1}}
    forks.values(lambda: TrainingJob(jobs.training(whole, STEPS, **settings)).run(), 2)
    assert jobs.state(tmp_path, STEPS) == jobs.state(whole, STEPS)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_four_hosts_then_three_then_four(tmp_path: Path, how: str) -> None:
    if why := missing():
        pytest.skip(why)
    job = write_job(tmp_path)
    with hosts(4) as net:

        def agent(host: int) -> list[str]:
            elastic = ["--nnodes", "3:4", "--nproc-per-node", "1", "--max-restarts", "3"]
            meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "host-0:29400", "--rdzv-id", "job"]
            quick = ["--rdzv-conf", "last_call_timeout=4,keep_alive_interval=1,keep_alive_max_attempt=3"]
            module = ["--module", "keepstep.cli.worker", "train", str(job)]
            return net.words(host, [*TORCHRUN, *elastic, *meet, *quick, *module])

        def begin(host: int, name: str) -> Any:
            # With the store that agents and ranks share, torch 2.13 never tells a host that joins where it is.
            return started(agent(host), tmp_path / f"{name}.log", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")

        with begin(0, "host-0") as first, begin(1, "host-1") as second, begin(2, "host-2") as third:
            with begin(3, "host-3") as leaving:
                await_steps(tmp_path, 50)
                assert [len(net.ranks(host)) for host in range(4)] == [1, 1, 1, 1]
                if how == "killed":
                    net.kill(3)
                else:
                    leaving.terminate()
                leaving.wait(60)
            until(lambda: len(attempts(tmp_path)) == 2, 60, lambda: logs(tmp_path))
            at = steps(tmp_path)
            await_steps(tmp_path, at + 30)
            with begin(3, "host-3-again") as fourth:
                for launcher in (first, second, third, fourth):
                    launcher.wait(150)
        assert [one.returncode for one in (first, second, third, fourth)] == [0, 0, 0, 0], logs(tmp_path)
    assert len(attempts(tmp_path)) == 3, logs(tmp_path)
    each_sample_was_consumed_once(tmp_path)
