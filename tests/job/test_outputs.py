"""Outputs that are committed with the position: each input once, wherever the job dies."""

import contextlib
import gzip
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open

from keepstep.config import parse_job
from keepstep.errors import ConfigError, DamagedOutputsError, SaveError, StateMismatchError
from keepstep.job import inference as inference_module
from keepstep.job import sink as sink_module
from keepstep.job.asked import Asked
from keepstep.job.can_resume import can_resume
from keepstep.job.inference import InferenceJob
from keepstep.ops.outputs.merge import merge
from keepstep.ops.outputs.verify import verify
from keepstep.storage import local
from keepstep.testing.faults import FaultError, small_disk
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


@pytest.mark.parametrize("ranks", [1, 2])
def test_no_inputs_are_a_finished_job(tmp_path: Path, ranks: int) -> None:
    def empty() -> None:
        outputs.length = 0
        InferenceJob(outputs.config(tmp_path)).run()

    forks.values(empty, ranks)
    outputs.check(tmp_path, 0)
    before = jobs.tree_digest(tmp_path)
    forks.values(empty, ranks)
    assert jobs.tree_digest(tmp_path) == before


def success(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "_SUCCESS.json").read_text())
    return found


def errors(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "out").glob("_errors-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_sample_that_fails_is_noted_and_the_others_are_there(tmp_path: Path, ranks: int) -> None:
    def with_bad_ones() -> None:
        outputs.bad = frozenset({0, 17, 18, 102})
        InferenceJob(outputs.config(tmp_path, outputs={"on_error": "record", "tries": 0})).run()

    forks.values(with_bad_ones, ranks)
    bad = {0, 17, 18, 102}
    assert sorted(row["id"] for row in outputs.visible(tmp_path)) == sorted(set(range(103)) - bad)
    noted = sorted(errors(tmp_path), key=lambda row: row["position"])
    assert noted[1] == {"id": 17, "position": 17, "error": "ValueError", "message": "cannot read 17"}
    assert {row["position"] for row in noted} == bad
    assert (success(tmp_path)["rows"], success(tmp_path)["errors"]) == (99, 4)
    assert verify(tmp_path / "out").problems == ()
    merge(tmp_path / "out", tmp_path / "all.jsonl")
    merged = [json.loads(line)["id"] for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert merged == sorted(set(range(103)) - bad)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_cannot_be_read_is_noted(tmp_path: Path, workers: int) -> None:
    def with_unreadable_ones() -> None:
        outputs.unreadable = frozenset({5, 6, 7, 102})
        InferenceJob(outputs.config(tmp_path, outputs={"on_error": "record"}, num_workers=workers)).run()

    forks.values(with_unreadable_ones)
    assert [row["position"] for row in errors(tmp_path)] == [5, 6, 7, 102]
    assert (errors(tmp_path)[0]["error"], errors(tmp_path)[0]["message"]) == ("OSError", "cannot open 5")
    assert sorted(row["id"] for row in outputs.visible(tmp_path)) == sorted(set(range(103)) - {5, 6, 7, 102})
    assert success(tmp_path)["errors"] == 4


def test_a_pass_that_fails_once_is_made_again(tmp_path: Path) -> None:
    def flaky() -> int:
        calls, original = 0, outputs.Rows.predict

        def predict(self: outputs.Rows, model: Any, batch: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise ValueError("for once")
            return original(self, model, batch)

        outputs.Rows.predict = predict  # type: ignore[method-assign]
        InferenceJob(outputs.config(tmp_path, outputs={"on_error": "record"})).run()
        return calls

    assert forks.values(flaky) == [27]
    outputs.check(tmp_path)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("bad"), ValueError),
        (torch.OutOfMemoryError("full"), torch.OutOfMemoryError),
        (KeyboardInterrupt(), None),
    ],
)
def test_what_is_no_fault_of_a_sample_ends_the_job(tmp_path: Path, error: BaseException, expected: Any) -> None:
    def dies() -> None:
        def predict(self: outputs.Rows, model: Any, batch: Any) -> Any:
            raise error

        outputs.Rows.predict = predict  # type: ignore[method-assign]
        on_error = "stop" if isinstance(error, ValueError) else "record"
        InferenceJob(outputs.config(tmp_path, outputs={"on_error": on_error})).run()

    (end,) = forks.run(dies)
    assert isinstance(end.error, expected or KeyboardInterrupt)
    assert errors(tmp_path) == []
    run(outputs.config(tmp_path))
    outputs.check(tmp_path)


def test_a_value_that_json_has_not_names_its_type_or_becomes_null(tmp_path: Path) -> None:
    def predicts(value: Any) -> None:
        def predict(self: outputs.Rows, model: Any, batch: Any) -> Any:
            return [{"value": value} for _ in batch[1]]

        outputs.Rows.predict = predict  # type: ignore[method-assign]
        InferenceJob(outputs.config(tmp_path)).run()

    (end,) = forks.run(lambda: predicts({1, 2}))
    assert "a set has no form in JSON" in str(end.error)
    forks.values(lambda: predicts([float("nan"), 1.5, np.float32(2.5), torch.ones(2)[0]]))
    assert outputs.visible(tmp_path)[0] == {"id": 0, "value": [None, 1.5, 2.5, 1.0]}


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_lines_are_compressed_and_merged_in_order(tmp_path: Path, compression: str) -> None:
    run(outputs.config(tmp_path, outputs={"compression": compression}), 2)
    end = {"none": "jsonl", "gzip": "jsonl.gz", "zstd": "jsonl.zst"}[compression]
    assert {file.name.split(".", 1)[1] for file in (tmp_path / "out").glob("part-*")} == {end}
    merge(tmp_path / "out", tmp_path / "all.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().split("\n")[:-1]]
    assert [row["id"] for row in rows] == list(range(103))
    merge(tmp_path / "out", tmp_path / "all.jsonl.gz")
    assert gzip.decompress((tmp_path / "all.jsonl.gz").read_bytes()) == (tmp_path / "all.jsonl").read_bytes()


@pytest.mark.parametrize("ranks", [2])
def test_parquet_of_arrow_batches(tmp_path: Path, ranks: int) -> None:
    run(outputs.config(tmp_path, task="tests.rig.outputs:table", outputs={"format": "parquet"}), ranks)
    assert sorted(pq.read_table(tmp_path / "out")["number"].to_pylist()) == list(range(103))
    assert merge(tmp_path / "out", tmp_path / "all.parquet").rows == 103
    merged = pq.read_table(tmp_path / "all.parquet")
    assert merged["id"].to_pylist() == merged["number"].to_pylist() == list(range(103))
    assert len(merged["values"][0]) == 8


def test_safetensors_with_ids_of_its_own_and_a_task_with_state(tmp_path: Path) -> None:
    job = outputs.config(
        tmp_path,
        task="tests.rig.outputs:columns",
        outputs={"format": "safetensors"},
        output_to=str(tmp_path / "total"),
    )
    run_to(job, 7, 4)
    run(job, 2)
    merge(tmp_path / "out", tmp_path / "all.safetensors")
    with safe_open(tmp_path / "all.safetensors", "np") as file:
        assert json.loads(file.metadata()["ids"]) == [f"n{i}" for i in range(103)]
        found = file.get_tensor("embedding")
    expected = torch.tensor([(i - i % 3 // 2) / 10 for i in range(103)]).to(torch.bfloat16).float()
    assert found.shape == (103, 3)
    assert found[:, 1].tolist() == expected.tolist()
    assert (tmp_path / "total").read_text() == f"{expected.sum().item():.3f}\n"


BY_LENGTH = {
    "dataset": "tests.rig.outputs:texts",
    "batching": {"global_batch_size": 16, "microbatch_size": 4, "by_length": {"budget": 200}},
    "checkpointing": {"period_steps": 2},
}


def watch(order: list[int]) -> None:
    """Keep the ids in the order in which they are predicted in this process."""
    original = outputs.Rows.predict

    def predict(self: outputs.Rows, model: Any, batch: Any) -> Any:
        order.extend(batch[0].tolist())
        return original(self, model, batch)

    outputs.Rows.predict = predict  # type: ignore[method-assign]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_passes_of_like_length_give_rows_in_the_order_of_the_input(tmp_path: Path, before: int, after: int) -> None:
    job = outputs.config(tmp_path, **BY_LENGTH)
    run_to(job, 3, before)

    def goes_on() -> list[int]:
        order: list[int] = []
        watch(order)
        InferenceJob(job).run()
        return order

    predicted = forks.values(goes_on, after)
    assert all(order != sorted(order) for order in predicted)
    outputs.check(tmp_path)
    for path in (tmp_path / "out").glob("part-*.jsonl"):
        ids = [json.loads(line)["id"] for line in path.read_text().split("\n")[:-1]]
        assert ids == sorted(ids)
    merge(tmp_path / "out", tmp_path / "all.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().split("\n")[:-1]]
    assert [row["id"] for row in rows] == list(range(103))
    assert [row["sum"] for row in rows] == [round(8 * (i - i % 3 // 2) / 10, 4) for i in range(103)]


def test_grouped_by_length_a_failed_row_is_noted_and_what_is_collected_is_in_order(tmp_path: Path) -> None:
    job = outputs.config(tmp_path, outputs={"on_error": "record", "format": "parquet"}, **BY_LENGTH)

    class Collecting(outputs.Rows):
        def __init__(self) -> None:
            self.sums: list[float] = []

        def collect(self, rows: Any) -> None:
            self.sums += [row["sum"] for row in rows]

        def state_dict(self) -> dict[str, Any]:
            return {"sums": self.sums}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.sums = state["sums"]

    def collects() -> list[float]:
        outputs.bad, outputs.unreadable = frozenset({7, 40}), frozenset({90})
        task = Collecting()
        outputs.Rows = lambda: task  # type: ignore[assignment,misc]
        InferenceJob(job).run()
        return task.sums

    good = [i for i in range(103) if i not in (7, 40, 90)]
    expected = [round(8 * (i - i % 3 // 2) / 10, 4) for i in good]
    assert forks.values(collects, 2) == [expected, expected]
    merge(tmp_path / "out", tmp_path / "all.parquet")
    merged = pq.read_table(tmp_path / "all.parquet")
    assert (merged["id"].to_pylist(), merged["sum"].to_pylist()) == (good, expected)
    assert [row["position"] for row in errors(tmp_path)] == [7, 40, 90]


def test_npy_is_one_array_in_the_order_of_the_input(tmp_path: Path) -> None:
    run(outputs.config(tmp_path, task="tests.rig.outputs:embeddings", outputs={"format": "npy"}), 2)
    merge(tmp_path / "out", tmp_path / "all.npy")
    found = np.load(tmp_path / "all.npy")
    assert found.shape == (103, 2)
    assert found[:, 0] == pytest.approx([i + (i - i % 3 // 2) / 10 for i in range(103)])


def test_a_final_manifest_that_is_gone_or_foreign_is_made_again(tmp_path: Path) -> None:
    run(outputs.config(tmp_path))
    path = tmp_path / "out" / "_SUCCESS.json"
    text = path.read_text()
    for change in (
        path.unlink,
        lambda: path.write_text("{}"),
        lambda: path.write_text(text.replace('"step": 26', '"step": 5')),
    ):
        change()
        run(outputs.config(tmp_path))
        assert path.read_text() == text
    assert can_resume(outputs.config(tmp_path), 1).notes == ()
    path.unlink()
    assert any("_SUCCESS.json is made" in note for note in can_resume(outputs.config(tmp_path), 1).notes)


def test_a_part_that_is_gone_or_cut_is_an_error_that_names_it(tmp_path: Path) -> None:
    run(outputs.config(tmp_path))
    part = min((tmp_path / "out").glob("part-*"))
    data = part.read_bytes()
    for change, text in ((part.unlink, "is gone"), (lambda: part.write_bytes(data[:-1]), f"has {len(data) - 1} bytes")):
        change()
        (end,) = forks.run(lambda: InferenceJob(outputs.config(tmp_path)).run())
        assert isinstance(end.error, DamagedOutputsError)
        assert f"{part.name} {text}" in str(end.error)
        assert any(f"{part.name} {text}" in problem for problem in verify(tmp_path / "out").problems)
    part.write_bytes(data[:-1] + b" ")
    assert verify(tmp_path / "out").problems == (f"{part.name} has other bytes than were written",)


def test_a_folder_of_another_job_is_refused_and_fresh_sets_it_aside(tmp_path: Path) -> None:
    run(outputs.config(tmp_path))
    other = outputs.config(tmp_path, checkpointing={"save_dir": str(tmp_path / "other")})
    before = jobs.tree_digest(tmp_path / "out")
    (end,) = forks.run(lambda: InferenceJob(other).run())
    assert isinstance(end.error, ConfigError)
    assert "holds outputs of another job" in str(end.error)
    assert jobs.tree_digest(tmp_path / "out") == before
    forks.values(lambda: InferenceJob(outputs.config(tmp_path)).run(asked=Asked(fresh=True)))
    kept = tmp_path / "out" / "_previous-1"
    assert {f"_previous-1/{name}": value for name, value in before.items()} == {
        name: value for name, value in jobs.tree_digest(tmp_path / "out").items() if name.startswith("_previous-1/")
    }
    kept.rename(tmp_path / "kept")
    outputs.check(tmp_path)


def test_a_checkpoint_that_is_gone_takes_its_rows_with_it(tmp_path: Path) -> None:
    run_to(outputs.config(tmp_path), 12)
    shutil.rmtree(tmp_path / "saves" / "save-10")
    run(outputs.config(tmp_path))
    assert [part.name[:14] for part in (tmp_path / "out" / "_previous-1").iterdir()] == ["part-000000010"]
    shutil.rmtree(tmp_path / "out" / "_previous-1")
    outputs.check(tmp_path)


def test_a_run_with_and_one_without_outputs_do_not_go_on_as_each_other(tmp_path: Path) -> None:
    with_collect = {"task": "tests.rig.outputs:columns"}
    run_to(outputs.config(tmp_path, **with_collect), 7)
    without = outputs.config(tmp_path, **with_collect).model_dump(exclude_defaults=True)
    del without["inference"]["outputs"]
    (end,) = forks.run(lambda: InferenceJob(parse_job(without)).run())
    assert isinstance(end.error, StateMismatchError)
    assert "outputs." in str(end.error)


@pytest.mark.parametrize(("ranks", "mode"), [(1, "sync"), (4, "async")])
def test_a_stop_signal_commits_the_rows_of_its_step(tmp_path: Path, ranks: int, mode: str) -> None:
    job = outputs.config(tmp_path, checkpointing={"mode": mode, "period_steps": 4})

    def stops() -> None:
        original = outputs.Rows.predict

        def predict(self: outputs.Rows, model: Any, batch: Any) -> Any:
            if 40 in batch[0].tolist():
                os.kill(os.getpid(), signal.SIGTERM)
            return original(self, model, batch)

        outputs.Rows.predict = predict  # type: ignore[method-assign]
        InferenceJob(job).run()

    assert {end.status for end in forks.run(stops, ranks)} == {75}
    assert sorted(row["id"] for row in outputs.visible(tmp_path)) == list(range(44))
    run(job, ranks)
    outputs.check(tmp_path)


def test_a_full_disk_ends_the_job_and_the_next_start_goes_on(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with contextlib.suppress(FaultError), small_disk(tmp_path / "out", 16384) as disk:
        filler = disk / "filler"

        def fills() -> None:
            original = outputs.Rows.predict

            def predict(self: outputs.Rows, model: Any, batch: Any) -> Any:
                if 30 in batch[0].tolist():
                    filler.write_bytes(b"")
                    with contextlib.suppress(OSError), filler.open("wb", 0) as file:
                        while True:
                            file.write(bytes(1024))
                return original(self, model, batch)

            outputs.Rows.predict = predict  # type: ignore[method-assign]
            InferenceJob(outputs.config(tmp_path)).run()

        (end,) = forks.run(fills)
        assert isinstance(end.error, SaveError)
        assert "No space left on device; 20 rows stay in memory" in str(end.error)
        assert sorted(row["id"] for row in outputs.visible(tmp_path)) == list(range(20))
        filler.unlink()
        subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
        run(outputs.config(tmp_path))
        outputs.check(tmp_path)
        return
    pytest.skip("no small disk can be mounted here")


@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_of_a_save_that_failed_come_with_the_next(tmp_path: Path, ranks: int) -> None:
    def fails_once() -> None:
        original, calls = local.DurableFile._write_out, 0

        def write_out(self: local.DurableFile, view: memoryview) -> None:
            nonlocal calls
            if self.path.name.startswith(".part-000000010") and forks.world.rank == ranks - 1:
                calls += 1
                raise OSError(28, "No space left on device", str(self.path))
            original(self, view)

        local.DurableFile._write_out = write_out  # type: ignore[method-assign]
        InferenceJob(outputs.config(tmp_path, checkpointing={"on_save_error": "continue"})).run()
        assert calls == (forks.world.rank == ranks - 1)

    forks.values(fails_once, ranks)
    outputs.check(tmp_path)
    assert verify(tmp_path / "out").problems == ()


def test_many_rows_are_written_before_a_save_comes(tmp_path: Path) -> None:
    def with_little_memory() -> None:
        sink_module.MOST = 2000
        InferenceJob(outputs.config(tmp_path)).run()

    forks.values(with_little_memory, 2)
    outputs.check(tmp_path)
    assert len(list((tmp_path / "out").glob("part-000000005*"))) == 2
    assert any("-00000-1-1." in file.name for file in (tmp_path / "out").glob("part-*"))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"outputs": {"to": "s3://bucket/rows"}}, "is an address"),
        ({"outputs": {"format": "npy", "compression": "gzip"}}, "does not go with"),
        ({"checkpointing": {"period_steps": "disable"}}, "committed by checkpoints"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        outputs.config(tmp_path, **settings)


def test_a_file_at_the_end_needs_a_task_that_makes_it(tmp_path: Path) -> None:
    (end,) = forks.run(lambda: InferenceJob(outputs.config(tmp_path, output_to=str(tmp_path / "file"))).run())
    assert isinstance(end.error, ConfigError)
    assert "output_to needs a task with collect and result" in str(end.error)
    assert list(tmp_path.iterdir()) == []


def test_a_sharded_model_gives_the_rows_of_a_whole_one(tmp_path: Path) -> None:
    model = {"model": "tests.rig.jobs:model", "task": "tests.rig.outputs:scores"}
    run(outputs.config(tmp_path / "whole", **model))
    sharded = outputs.config(tmp_path / "sharded", mesh={"data_parallel_shard": 2}, **model)
    run_to(sharded, 11, 2)
    run(sharded, 2)
    found = [{row["id"]: row["score"] for row in outputs.visible(tmp_path / name)} for name in ("whole", "sharded")]
    assert sorted(found[1]) == list(range(103))
    assert found[1] == pytest.approx(found[0], abs=1e-5)
    assert verify(tmp_path / "sharded" / "out").problems == ()


def test_rows_that_fail_alone_need_a_model_of_ones_own(tmp_path: Path) -> None:
    job = outputs.config(tmp_path, outputs={"on_error": "record"}, mesh={"data_parallel_shard": 2})
    ends = forks.run(lambda: InferenceJob(job).run(), 2)
    assert all("on_error: record needs data_parallel_shard: 1" in str(end.error) for end in ends)
