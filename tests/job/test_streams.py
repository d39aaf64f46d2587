"""Training on streams: twin-equal after any stop, and refused where it could not be."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from keepstep.job import loop as loop_module
from keepstep.job.train import TrainingJob
from tests.rig import forks, jobs

TOTAL = 13


def config(folder: Path, kind: str, **data: Any) -> Any:
    return jobs.training(
        folder,
        TOTAL,
        providers={"dataset": f"tests.rig.streams:{kind}"},
        batching={"global_batch_size": 4, "microbatch_size": 1},
        data=data,
        checkpointing={"save_dir": str(folder / "checkpoints"), "period_steps": 1, "num_to_keep": 2},
    )


def run(job: Any, ranks: int = 1, stop: int | None = None) -> None:
    def work() -> None:
        if stop is not None:
            loop_module.leave_if_asked = lambda c, step, total: os._exit(9) if step == stop else None
        TrainingJob(job).run()

    if stop is None:
        forks.values(work, ranks, seconds=100)
    else:
        assert {end.status for end in forks.run(work, ranks, seconds=100)} == {9}


@pytest.mark.parametrize(
    ("kind", "ranks", "data", "stops"),
    [
        ("plain_stream", 1, {}, (1, 5, 6)),
        ("stream_with_state", 1, {}, (1, 5, 6)),
        ("shuffled_stream", 1, {}, (1, 5, 6)),
        pytest.param("shuffled_stream", 1, {"num_workers": 2}, (5,), marks=pytest.mark.slow),
        pytest.param(
            "shuffled_stream", 1, {"num_workers": 2, "persistent_workers": True}, (6,), marks=pytest.mark.slow
        ),
        ("shuffled_stream", 2, {}, (5,)),
        pytest.param("shuffled_stream", 2, {}, (5, 6), marks=pytest.mark.slow),
        ("stream_with_state", 2, {"num_workers": 2, "persistent_workers": True}, (6,)),
    ],
)
def test_a_resumed_run_is_the_run_that_was_started(
    tmp_path: Path, kind: str, ranks: int, data: dict[str, Any], stops: Any
) -> None:
    run(config(tmp_path / "a", kind, **data), ranks)
    for stop in stops:  # a chain: each begins where the one before was stopped
        run(config(tmp_path / "b", kind, **data), ranks, stop)
    run(config(tmp_path / "b", kind, **data), ranks)
    assert jobs.rows(tmp_path / "a") == jobs.rows(tmp_path / "b")
    assert jobs.state(tmp_path / "a", TOTAL) == jobs.state(tmp_path / "b", TOTAL)


def test_another_number_of_ranks_is_refused_with_both(tmp_path: Path) -> None:
    run(config(tmp_path, "plain_stream"), 2, 2)
    before = jobs.tree_digest(tmp_path)
    ended = forks.run(lambda: TrainingJob(config(tmp_path, "plain_stream")).run(), 1)
    assert ended[0].status == 3
    assert re.search(r"world_size +2 +1 +refuse", str(ended[0].error))
    assert jobs.tree_digest(tmp_path) == before


def test_another_number_of_workers_is_refused_with_both(tmp_path: Path) -> None:
    run(config(tmp_path, "plain_stream"), 1, 2)
    ended = forks.run(lambda: TrainingJob(config(tmp_path, "plain_stream", num_workers=2)).run(), 1)
    assert "that of 0 workers, this job has 2" in str(ended[0].error)


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("plain_stream", {"ledger": True}, "no index"),
        ("plain_stream", {"stream": "state"}, "can only be read again"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(tmp_path: Path, kind: str, data: dict[str, Any], words: str) -> None:
    (ended,) = forks.run(lambda: TrainingJob(config(tmp_path, kind, **data)).run())
    assert words in str(ended.error)


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("plain_stream", {}, "again from the begin of its epoch"),
        ("shuffled_stream", {}, "does not hold its shuffle buffer (8 samples)"),
        ("shuffled_stream", {"stream": "state"}, "up to 8 samples in its shuffle buffer are lost"),
        ("stream_with_state", {}, ""),
    ],
)
def test_what_is_at_risk_is_said_before_the_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, data: dict[str, Any], words: str
) -> None:
    def work() -> str:
        TrainingJob(config(tmp_path, kind, **data)).run()
        lines = [record.message for record in caplog.records]
        first = next(i for i, line in enumerate(lines) if line.startswith("step 1/"))
        return "\n".join(lines[:first])

    with caplog.at_level("INFO", logger="keepstep"):
        (said,) = forks.values(work)
    assert words in said
    assert words or "stream" not in said
