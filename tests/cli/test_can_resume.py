"""`keepstep can-resume`, and the flags that go with it, as a person meets them."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from keepstep.cli import launcher, worker
from tests.rig import forks, jobs
from tests.rig.command import keepstep


@pytest.fixture
def job(tmp_path: Path) -> Path:
    config = jobs.training(tmp_path, 8).model_dump(mode="json", exclude_none=True)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(config))
    assert keepstep("train", "job.yaml", cwd=tmp_path).returncode == 0
    return tmp_path


def test_it_says_where_a_start_goes_on_and_changes_nothing(job: Path) -> None:
    before = jobs.tree_digest(job)
    done = keepstep("can-resume", "job.yaml", cwd=job)
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "nothing to do")
    done = keepstep("can-resume", "job.yaml", "--set", "trainer.total_steps=20", "--json", cwd=job)
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["outcome"], facts["step"], facts["remaining_steps"]) == (0, "resume", 8, 12)
    assert facts["data"]["samples"] == 32
    done = keepstep("can-resume", "job.yaml", "--set", "trainer.total_steps=20", cwd=job)
    assert "resumes from step 8" in done.stdout
    assert "epoch 1, sample 32 of 50" in done.stdout
    assert "12 steps remain" in done.stdout
    assert "o as saved" in done.stdout
    assert jobs.tree_digest(job) == before


def test_exit_codes_are_those_of_the_start(job: Path, tmp_path: Path) -> None:
    seed = ("--set", "trainer.determinism.base_seed=8", "--set", "trainer.total_steps=12")
    asked = keepstep("can-resume", "job.yaml", *seed, cwd=job)
    started = keepstep("train", "job.yaml", *seed, cwd=job)
    assert asked.returncode == started.returncode == 3
    assert "--accept seed=8" in asked.stderr
    assert asked.stderr == started.stderr
    assert keepstep("can-resume", "job.yaml", *seed, "--accept", "seed=8", cwd=job).returncode == 0
    wrong = keepstep("can-resume", "job.yaml", "--accept", "sed=8", cwd=job)
    assert wrong.returncode == 2
    assert "did you mean seed?" in wrong.stderr
    assert keepstep("can-resume", "job.yaml", "--set", "trainer.batching.global_batch_size=3", cwd=job).returncode == 0
    assert keepstep("can-resume", "job.yaml", "--nproc", "3", cwd=job).returncode == 2
    (job / "checkpoints" / "run" / "save-8" / "manifest.json").write_text("{}")
    (job / "checkpoints" / "run" / "save-4" / "manifest.json").write_text("{}")
    done = keepstep("can-resume", "job.yaml", "--json", cwd=job)
    assert (done.returncode, json.loads(done.stdout)["outcome"]) == (4, "damaged")


def forked_launch(config: Any, program: str) -> Callable[..., None]:
    """Stands for torch's launcher: its ranks are forked, which takes no start of Python."""

    def launch(*words: str) -> None:
        assert (program, *words[:2]) == (sys.executable, "-m", "keepstep.cli.worker")

        def rank() -> None:
            sys.argv = ["keepstep", *words[2:]]
            with pytest.raises(SystemExit) as end:
                worker.run()
            assert end.value.code == 0

        forks.values(rank, config.nproc_per_node)

    return launch


def test_flags_reach_the_ranks(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "elastic_launch", forked_launch)
    more = ("--set", "trainer.total_steps=12", "--set", "trainer.determinism.base_seed=8")
    done = keepstep("train", "job.yaml", "--nproc", "2", "--from", "save-4", "--accept", "seed=8", *more, cwd=job)
    assert done.returncode == 0, done.stderr
    record = json.loads((job / "checkpoints" / "run.fork-1" / "save-12" / "run.json").read_text())
    assert (record["seed"], record["fork_of"], record["world_size"]) == (8, "run/save-4", 2)
    shown = keepstep("ls", "--tree", str(job / "checkpoints")).stdout
    assert shown.split() == ["run", "save-4", "run.fork-1", "save-8", "save-12", "save-8"]
    assert "parents: save-8, run/save-4" in keepstep("show", str(job / "checkpoints" / "run.fork-1" / "save-12")).stdout


@pytest.mark.parametrize("wrong", ["save", "save--1", "x", "save-1x"])
def test_from_must_name_a_checkpoint(job: Path, wrong: str) -> None:
    done = keepstep("train", "job.yaml", "--from", wrong, cwd=job)
    assert done.returncode == 2
    assert "such as save-200" in done.stderr
    assert os.listdir(job / "checkpoints") == ["run"]
