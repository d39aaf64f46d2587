"""The training job is twin-equal wherever it stops, and across worlds; its ledger proves the order."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from keepstep.job import loop as loop_module
from keepstep.job.train import TrainingJob
from keepstep.ops.audit import audit
from tests.rig import forks, jobs

PROVIDERS = {"dataset": "tests.rig.jobs:augmented"}


def config(folder: Path, total: int, *, workers: int = 0, micro: int = 2, batch: int = 4, **more: Any) -> Any:
    return jobs.training(
        folder,
        total,
        providers=PROVIDERS | more.pop("providers", {}),
        batching={"global_batch_size": batch, "microbatch_size": micro},
        data=more.pop("data", {"num_workers": workers, "ledger": True}),
        checkpointing={"save_dir": str(folder / "checkpoints"), "period_steps": 1, "num_to_keep": 2},
        **more,
    )


def run(job: Any, ranks: int, stop: int | None = None) -> None:
    """Run a job; with `stop` all ranks die without a word after that step's save."""

    def work() -> None:
        if stop is not None:
            loop_module.leave_if_asked = lambda c, step, total: os._exit(9) if step == stop else None
        TrainingJob(job).run()

    if stop is None:
        forks.values(work, ranks, seconds=100)
    else:
        assert {end.status for end in forks.run(work, ranks, seconds=100)} == {9}


def check_twins(a: Path, b: Path, total: int) -> None:
    assert jobs.rows(a) == jobs.rows(b)
    assert jobs.state(a, total) == jobs.state(b, total)
    assert audit(b / "checkpoints" / "run").exact


# 13 samples in batches of 4: two epochs end at steps 4 and 7, inside a batch.
TOTAL = 7


@pytest.mark.parametrize(
    ("ranks", "workers", "micro", "stops"),
    [
        (1, 0, 4, range(1, TOTAL)),
        (1, 0, 1, range(1, TOTAL)),
        (1, 2, 2, (4,)),
        (2, 0, 1, (3, 4)),
        pytest.param(1, 2, 2, (1, 2, 3, 5, 6), marks=pytest.mark.slow),
        pytest.param(2, 0, 1, (1, 2, 5, 6), marks=pytest.mark.slow),
        (2, 2, 2, (3,)),
    ],
)
def test_a_stop_at_every_step_of_two_epochs(tmp_path: Path, ranks: int, workers: int, micro: int, stops: Any) -> None:
    run(config(tmp_path / "whole", TOTAL, workers=workers, micro=micro), ranks)
    for stop in stops:
        folder = tmp_path / str(stop)
        run(config(folder, TOTAL, workers=workers, micro=micro), ranks, stop)
        run(config(folder, TOTAL, workers=workers, micro=micro), ranks)
        check_twins(tmp_path / "whole", folder, TOTAL)


def test_five_stops_in_a_row_each_right_after_the_resume(tmp_path: Path) -> None:
    run(config(tmp_path / "a", TOTAL), 1)
    for stop in range(1, 6):
        run(config(tmp_path / "b", TOTAL), 1, stop)
    run(config(tmp_path / "b", TOTAL), 1)
    check_twins(tmp_path / "a", tmp_path / "b", TOTAL)


def test_workers_and_their_number_change_nothing(tmp_path: Path) -> None:
    run(config(tmp_path / "a", TOTAL), 1)
    for stop, workers, persistent in ((2, 2, True), (4, 0, False), (None, 1, False)):
        data = {"num_workers": workers, "persistent_workers": persistent, "ledger": True}
        run(config(tmp_path / "b", TOTAL, data=data), 1, stop)
    check_twins(tmp_path / "a", tmp_path / "b", TOTAL)


def test_4_2_3_1_4_ranks_along_one_run(tmp_path: Path) -> None:
    """The same samples in the same order on any number of ranks, and the same loss up to rounding."""
    more = {"micro": 1, "batch": 12, "providers": {"model": "tests.rig.jobs:model_without_dropout"}}
    run(config(tmp_path / "a", 10, **more), 4)
    for ranks, stop in ((4, 2), (2, 4), (3, 6), (1, 8), (4, None)):
        run(config(tmp_path / "b", 10, **more), ranks, stop)
    a, b = (audit(tmp_path / name / "checkpoints" / "run") for name in "ab")
    assert b.exact
    assert (a.epochs, a.samples) == (b.epochs, b.samples)
    losses = [[row["loss"] for row in jobs.rows(tmp_path / name).values()] for name in "ab"]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    seen = [torch.tensor(jobs.state(tmp_path / name, 10)["model.adapter.weight"]) for name in "ab"]
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-6)


def test_a_world_that_does_not_divide_the_batch_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    run(config(tmp_path, 4, batch=4, micro=1), 2, 2)
    before = jobs.tree_digest(tmp_path)
    ended = forks.run(lambda: TrainingJob(config(tmp_path, 4, batch=4, micro=1)).run(), 3)
    assert {type(end.error).__name__ for end in ended} == {"ConfigError"}
    assert "rank counts that work: 1, 2, 4" in str(ended[0].error)
    assert jobs.tree_digest(tmp_path) == before
