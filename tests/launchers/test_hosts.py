"""Two hosts, one of them cut off in the middle of a save: an error in time, nothing half, and both go on together."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from keepstep.job.train import TrainingJob
from keepstep.storage.survey import survey
from tests.launchers.test_elastic import started
from tests.rig import forks, jobs
from tests.rig.hosts import Hosts, hosts, missing
from tests.rig.slurm import until

SECONDS = 8
pytestmark = [
    pytest.mark.launchers,
    pytest.mark.timeout(300),
]


def both(net: Hosts, folder: Path, stack: ExitStack, name: str, module: str) -> "list[subprocess.Popen[bytes]]":
    """One rank on each host, as a launcher that knows the hosts would start them."""
    job = [sys.executable, "-m", module, "train", str(folder / "job.yaml")]
    common = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "host-0", "MASTER_PORT": "29500"}
    common |= {"CUT_SAVE_FOLDER": str(folder), "CUT_SAVE_STEP": "8"}
    return [
        stack.enter_context(started(net.words(host, job), folder / f"{name}-{host}.log", RANK=str(host), **common))
        for host in (0, 1)
    ]


@pytest.mark.parametrize("host", [0, 1])
def test_a_host_is_cut_off_in_the_middle_of_a_save(tmp_path: Path, host: int) -> None:
    if why := missing():
        pytest.skip(why)
    settings = {"save_dir": str(tmp_path / "checkpoints"), "period_steps": 4, "num_to_keep": 2}
    job = jobs.training(tmp_path, checkpointing={**settings, "timeout_seconds": SECONDS})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job.model_dump(mode="json")))
    run = tmp_path / "checkpoints" / "run"

    def log(name: str, rank: int) -> str:
        return (tmp_path / f"{name}-{rank}.log").read_text()

    with hosts(2) as net, ExitStack() as stack:
        ranks = both(net, tmp_path, stack, "cut", "tests.rig.cut_save")
        signs = [tmp_path / f"written-{rank}" for rank in (0, 1)]
        until(lambda: all(sign.exists() for sign in signs), 90, lambda: log("cut", 0) + log("cut", 1))
        net.cut(host)
        (tmp_path / "go").touch()
        began = time.monotonic()
        for rank in ranks:
            rank.wait(SECONDS * 4)
        took = time.monotonic() - began
        assert [rank.returncode for rank in ranks] == [1, 1]
        assert "saving step 8" in log("cut", 0)
        assert "no answer from rank 1 (host-1)" in log("cut", 0)
        assert "has lost rank 0 (host-0)" in log("cut", 1)
        assert took < SECONDS * 4
        assert [one.found.step for one in survey(run).complete] == [4]
        assert not [name for name in os.listdir(run) if name.startswith(".save-8")], "something half is left"

        net.mend(host)
        ranks = both(net, tmp_path, stack, "again", "keepstep.cli.worker")
        for rank in ranks:
            rank.wait(90)
        assert [rank.returncode for rank in ranks] == [0, 0], log("again", 0) + log("again", 1)
        assert "resumed from step 4" in log("again", 0)

    whole = tmp_path / "whole"
    forks.values(lambda: TrainingJob(jobs.training(whole)).run(), 2)
    assert jobs.state(tmp_path, 12) == jobs.state(whole, 12)
