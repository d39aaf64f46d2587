"""The twin check on the real example: SIGKILL at ten moments, also inside saves; the same bits at the end."""

import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from keepstep.config import load_job
from keepstep.config.job import JobConfig
from keepstep.job.train import TrainingJob
from tests.rig import forks, jobs

EXAMPLE = Path(__file__).parents[2] / "examples" / "stdlib_lm"
TOTAL, PERIOD, KILLS = 100, 10, 10


@pytest.fixture(autouse=True)
def _example_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(EXAMPLE), *sys.path])


def config(folder: Path) -> JobConfig:
    """The example's own job, in a small size."""
    return load_job(
        EXAMPLE / "train.yaml",
        [
            "providers.model=gpt:build_small",
            "providers.dataset=corpus:windows_small",
            f"trainer.total_steps={TOTAL}",
            "trainer.batching={global_batch_size: 8, microbatch_size: 2}",
            "trainer.logging.period_steps=1",
            f"trainer.checkpointing={{save_dir: {folder / 'checkpoints'}, period_steps: {PERIOD}, num_to_keep: 2}}",
            f"trainer.export_to={folder / 'export'}",
        ],
    )


def run(folder: Path) -> None:
    TrainingJob(config(folder)).run()


class Killer:
    """Kills the ranks of one attempt: at a step, or while the folder of a save exists."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._run = folder / "checkpoints" / "stdlib-lm"
        self._random = random.Random(seed)

    def strike(self, ranks: list[forks.Rank], number: int) -> None:
        inside_a_save = number % 2 == 1
        deadline = time.monotonic() + 60
        # On a busy machine a save may be over before it is seen: then the job is killed in one of the steps after it.
        while not ((inside_a_save and self._saving(number * PERIOD)) or self._steps() > number * PERIOD):
            assert time.monotonic() < deadline, "the job does not get on"
            time.sleep(0.0005)
        time.sleep(self._random.uniform(0, 0.015 if inside_a_save else 0.05))
        for rank in self._random.sample(ranks, len(ranks)):
            rank.kill()

    def _steps(self) -> int:
        log = self._run / "metrics.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def _saving(self, step: int) -> bool:
        return any(self._run.glob(f".save-{step}.tmp-*"))


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.crash)])
def test_killed_ten_times_it_ends_in_the_same_bits(tmp_path: Path, size: int) -> None:
    forks.values(lambda: run(tmp_path / "a"), size, seconds=120)
    killed = 0
    for number in range(KILLS):
        ranks = forks.start(lambda: run(tmp_path / "b"), size)
        for rank in ranks:
            rank.go()
        Killer(tmp_path / "b", number).strike(ranks, number)
        killed += any(end.killed for end in forks.wait_all(ranks))
    forks.values(lambda: run(tmp_path / "b"), size, seconds=120)
    assert killed == KILLS
    assert rows(tmp_path / "b") == rows(tmp_path / "a")
    assert list(rows(tmp_path / "b")) == list(range(1, TOTAL + 1))
    assert state(tmp_path / "b") == state(tmp_path / "a")
    exports = [(tmp_path / name / "export" / "model.safetensors").read_bytes() for name in "ab"]
    assert exports[0] == exports[1]


def rows(folder: Path) -> dict[int, Any]:
    return jobs.rows(folder, "stdlib-lm")


def state(folder: Path) -> dict[str, Any]:
    """Weights, optimizer, schedule, position, metrics and random states of the last checkpoint."""
    found = jobs.state(folder, TOTAL, "stdlib-lm")
    assert any(key.startswith("rng.") for key in found)
    assert any(key.endswith(".exp_avg") for key in found)
    return found
