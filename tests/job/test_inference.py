"""The inference job as a whole: each sample once, in order, wherever it dies."""

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from keepstep.job import inference as inference_module
from keepstep.job.inference import InferenceJob
from keepstep.storage.survey import survey
from tests.rig import forks, jobs


def run(config: Any, ranks: int = 1) -> None:
    forks.values(lambda: InferenceJob(config).run(), ranks)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "sums.jsonl").read_text().splitlines()]


@pytest.fixture
def expected() -> list[dict[str, Any]]:
    net = jobs.Net().eval()
    net.load_state_dict(weights())
    return [{"id": i, "sum": net(x).sum().item()} for i, x in (jobs.Samples()[i] for i in range(50))]


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return jobs.Net().state_dict()


def config(folder: Path, **settings: Any) -> Any:
    folder.mkdir(exist_ok=True)
    save_file(weights(), folder / "weights.safetensors")
    factory = {"source_checkpoint": str(folder / "weights.safetensors")}
    return jobs.inference(folder, model_stage_factory=factory, **settings)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_sample_is_in_the_output_once_and_in_order(tmp_path: Path, ranks: int, expected: Any) -> None:
    run(config(tmp_path), ranks)
    found = rows(tmp_path)
    assert [row["id"] for row in found] == list(range(50))
    assert [row["sum"] for row in found] == pytest.approx([row["sum"] for row in expected], abs=1e-6)
    assert [c.found.step for c in survey(tmp_path / "inference").complete] == [7]


def test_a_task_that_gives_too_few_results_loses_no_sample_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = jobs.Sums.predict
    monkeypatch.setattr(jobs.Sums, "predict", lambda *given: predict(*given)[:-1])
    with pytest.raises(ValueError, match="predict gave 1 results for 2 samples"):
        InferenceJob(config(tmp_path)).run()
    assert not (tmp_path / "sums.jsonl").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], bytes]:
    """What a job writes on so many ranks that nobody stops."""

    @cache
    def output(ranks: int) -> bytes:
        folder = tmp_path_factory.mktemp("whole")
        run(config(folder), ranks)
        return (folder / "sums.jsonl").read_bytes()

    return output


@pytest.mark.parametrize(("stop", "ranks"), [*((stop, 1) for stop in range(1, 8)), (1, 2), (4, 2), (7, 2)])
def test_it_dies_after_any_step_and_skips_what_it_has_processed(
    tmp_path: Path, whole: Callable[[int], bytes], stop: int, ranks: int
) -> None:
    def die() -> None:
        original = inference_module.leave_if_asked

        def leave(checkpointer: Any, step: int, total: int) -> None:
            original(checkpointer, step, total)
            if step == stop:
                os._exit(9)

        inference_module.leave_if_asked = leave
        InferenceJob(config(tmp_path / "b")).run()

    def count_calls() -> int:
        calls = 0
        original = jobs.Sums.predict

        def predict(self: jobs.Sums, model: Any, batch: Any) -> Any:
            nonlocal calls
            calls += 1
            return original(self, model, batch)

        jobs.Sums.predict = predict
        InferenceJob(config(tmp_path / "b")).run()
        return calls

    assert {end.status for end in forks.run(die, ranks)} == {9}
    assert not (tmp_path / "b" / "sums.jsonl").exists()
    calls = forks.values(count_calls, ranks)
    done = stop if stop == 7 else stop - stop % 2
    assert sum(calls) <= (7 - done) * 4
    assert (tmp_path / "b" / "sums.jsonl").read_bytes() == whole(ranks)


def test_a_checkpoint_holds_what_the_spec_lists(tmp_path: Path) -> None:
    from keepstep.dcp.metadata import read_metadata, stored_keys

    run(config(tmp_path))
    keys = set(stored_keys(read_metadata(tmp_path / "inference" / "save-7")))
    assert {"step", "model.base.weight", "data.dp_0.samples", "task.rows", "rng.rank_0"} <= keys
    assert not any(key.startswith(("optimizer.", "lr_scheduler.", "metrics.", "tracker.")) for key in keys)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_finished_job_does_nothing_and_changes_not_one_byte(tmp_path: Path, ranks: int) -> None:
    run(config(tmp_path), ranks)
    job = config(tmp_path).model_copy(update={})
    before = jobs.tree_digest(tmp_path)

    def again() -> list[str]:
        messages: list[str] = []
        inference_module.logger.info = lambda text, *args: messages.append(text % args)  # type: ignore[method-assign]
        jobs.Net.forward = None  # type: ignore[assignment]
        InferenceJob(job).run()
        return messages

    messages = forks.values(again, ranks)
    assert messages == [["Inference is already complete, nothing to do"]] + [[]] * (ranks - 1)
    assert jobs.tree_digest(tmp_path) == before


def test_a_missing_output_is_written_from_the_last_checkpoint(tmp_path: Path) -> None:
    run(config(tmp_path))
    text = (tmp_path / "sums.jsonl").read_text()
    (tmp_path / "sums.jsonl").unlink()
    before = jobs.tree_digest(tmp_path / "inference")
    run(config(tmp_path))
    assert (tmp_path / "sums.jsonl").read_text() == text
    assert jobs.tree_digest(tmp_path / "inference") == before


def test_an_output_of_another_job_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "sums.jsonl").write_text("old\n")
    run(config(tmp_path))
    assert len(rows(tmp_path)) == 50


def test_it_resumes_on_another_number_of_ranks_that_have_random_states(tmp_path: Path) -> None:
    run(config(tmp_path / "a"), 2)

    def die() -> None:
        inference_module.leave_if_asked = lambda c, step, total: os._exit(9) if step == 4 else None
        InferenceJob(config(tmp_path / "b")).run()

    forks.run(die, 2)
    run(config(tmp_path / "b"), 1)
    assert [row["id"] for row in rows(tmp_path / "b")] == list(range(50))


def test_changed_weights_are_refused_instead_of_old_results_being_given_for_new_ones(tmp_path: Path) -> None:
    run(config(tmp_path))
    before = jobs.tree_digest(tmp_path / "inference")
    job = config(tmp_path)
    torch.manual_seed(4)
    save_file(jobs.Net().state_dict(), tmp_path / "weights.safetensors")
    (end,) = forks.run(lambda: InferenceJob(job).run())
    assert end.status == 3
    assert "base_weights" in str(end.error)
    assert "another run name or save_dir" in str(end.error)
    assert jobs.tree_digest(tmp_path / "inference") == before


@pytest.mark.parametrize(("first", "second", "stop"), [(4, 8, 8), (4, 8, 6), (8, 4, 4)])
def test_another_batch_size_goes_on_at_the_same_sample(tmp_path: Path, first: int, second: int, stop: int) -> None:
    def job(size: int) -> Any:
        return jobs.inference(tmp_path, batching={"global_batch_size": size, "microbatch_size": 2})

    def dies() -> None:
        inference_module.leave_if_asked = lambda c, step, total: os._exit(9) if step == stop else None
        InferenceJob(job(first)).run()

    assert forks.run(dies)[0].status == 9
    forks.values(lambda: InferenceJob(job(second)).run())
    rows = [json.loads(line) for line in (tmp_path / "sums.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == list(range(50))
    before = jobs.tree_digest(tmp_path)
    forks.values(lambda: InferenceJob(job(second)).run())
    assert jobs.tree_digest(tmp_path) == before
