"""Outputs that are committed with the position: each input once, wherever the job dies."""

import os
from pathlib import Path
from typing import Any

import pytest

from keepstep.job import inference as inference_module
from keepstep.job.inference import InferenceJob
from tests.rig import forks, jobs, outputs


def run(config: Any, ranks: int = 1) -> None:
    forks.values(lambda: InferenceJob(config).run(), ranks)


def run_to(config: Any, stop: int, ranks: int = 1) -> None:
    """Die after a step, as a SIGKILL between two steps does."""

    def dies() -> None:
        original = inference_module.leave_if_asked

        def leave(checkpointer: Any, step: int, total: int) -> None:
            original(checkpointer, step, total)
            if step == stop:
                os._exit(9)

        inference_module.leave_if_asked = leave
        InferenceJob(config).run()

    assert {end.status for end in forks.run(dies, ranks)} == {9}


@pytest.mark.parametrize("ranks", [1, 4])
def test_each_input_is_there_once_and_a_finished_job_changes_nothing(tmp_path: Path, ranks: int) -> None:
    run(outputs.config(tmp_path), ranks)
    outputs.check(tmp_path)
    before = jobs.tree_digest(tmp_path)

    def again() -> list[str]:
        messages: list[str] = []
        inference_module.logger.info = lambda text, *args: messages.append(text % args)  # type: ignore[method-assign]
        InferenceJob(outputs.config(tmp_path)).run()
        return messages

    assert forks.values(again, ranks) == [["Inference is already complete, nothing to do"]] + [[]] * (ranks - 1)
    assert jobs.tree_digest(tmp_path) == before


def test_it_goes_on_with_other_numbers_of_ranks(tmp_path: Path) -> None:
    job = outputs.config(tmp_path, batching={"global_batch_size": 12}, checkpointing={"period_steps": 2})
    run_to(job, 3, 4)
    seen = outputs.visible(tmp_path)
    assert sorted(row["id"] for row in seen) == list(range(24))
    run_to(job, 6, 2)
    run(job, 3)
    outputs.check(tmp_path)


@pytest.mark.parametrize("ranks", [1, 4])
def test_no_inputs_are_a_finished_job(tmp_path: Path, ranks: int) -> None:
    def empty() -> None:
        outputs.length = 0
        InferenceJob(outputs.config(tmp_path)).run()

    forks.values(empty, ranks)
    outputs.check(tmp_path, 0)
    before = jobs.tree_digest(tmp_path)
    forks.values(empty, ranks)
    assert jobs.tree_digest(tmp_path) == before
