"""Inference over files: it seeks on resume, refuses changed data, and groups by length without changing the output."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from keepstep.data.files.base import RawFile
from keepstep.errors import ConfigError, GuardRefusedError
from keepstep.job import inference as inference_module
from keepstep.job.can_resume import can_resume
from keepstep.job.inference import InferenceJob
from tests.rig import file_jobs, forks, jobs

COUNT = 53
BY_LENGTH = {"batching": {"global_batch_size": 16, "by_length": {"budget": 300}}}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return file_jobs.write(tmp_path / "in", COUNT)


def ids(folder: Path) -> list[int]:
    return [json.loads(line)["id"] for line in (folder / "rows.jsonl").read_text().splitlines()]


def die_after(config: Any, last: int, ranks: int = 1) -> None:
    def die() -> None:
        original = inference_module.leave_if_asked

        def leave(checkpointer: Any, step: int, total: int) -> None:
            original(checkpointer, step, total)
            if step == last:
                os._exit(9)

        inference_module.leave_if_asked = leave
        InferenceJob(config).run()

    assert {end.status for end in forks.run(die, ranks)} == {9}


def run(config: Any, ranks: int = 1) -> list[list[tuple[int, int]]]:
    """Run it to its end. Returns the sizes of the micro-batches of each rank."""

    def job() -> list[tuple[int, int]]:
        sizes: list[tuple[int, int]] = []
        original = file_jobs.Echo.__init__

        def keep(self: file_jobs.Echo) -> None:
            original(self)
            self.sizes = sizes

        file_jobs.Echo.__init__ = keep  # type: ignore[method-assign]
        InferenceJob(config).run()
        return sizes

    return forks.values(job, ranks)


@pytest.mark.parametrize("settings", [{}, BY_LENGTH], ids=["in order", "by length"])
def test_it_dies_and_goes_on_on_other_ranks(tmp_path: Path, data: Path, settings: Any) -> None:
    config = file_jobs.inference(tmp_path, data, **settings)
    die_after(config, 3, ranks=2)
    run(config, ranks=1)
    assert ids(tmp_path) == list(range(COUNT))


def test_a_resume_reads_nothing_of_what_is_done(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = file_jobs.inference(tmp_path, data)
    die_after(config, 6)

    def count() -> int:
        reads: list[int] = []
        original = RawFile.read

        def read(self: RawFile, offset: int, size: int) -> bytes:
            reads.append(size)
            return original(self, offset, size)

        monkeypatch.setattr(RawFile, "read", read)
        InferenceJob(config).run()
        return len(reads)

    assert forks.values(count, 1) == [COUNT - 6 * 8]
    assert ids(tmp_path) == list(range(COUNT))


def test_a_changed_file_is_refused_by_name(tmp_path: Path, data: Path) -> None:
    config = file_jobs.inference(tmp_path, data)
    die_after(config, 4)
    before = jobs.tree_digest(tmp_path / "inference")
    (data / "1.jsonl").write_text((data / "1.jsonl").read_text().replace("x", "y"))
    with pytest.raises(GuardRefusedError, match=r"changed: data_files, data_files: 1\.jsonl\)"):
        InferenceJob(config).run()
    assert jobs.tree_digest(tmp_path / "inference") == before


def test_can_resume_tells_how_far_it_is(tmp_path: Path, data: Path) -> None:
    config = file_jobs.inference(tmp_path, data)
    die_after(config, 4)
    outlook = can_resume(config, 1)
    assert (outlook.outcome, outlook.step, outlook.remaining_steps) == ("resume", 4, 3)
    assert outlook.data is not None
    assert (outlook.data.samples, outlook.data.length) == (32, COUNT)


def test_a_moved_folder_is_the_same_data(tmp_path: Path, data: Path, caplog: pytest.LogCaptureFixture) -> None:
    die_after(file_jobs.inference(tmp_path, data), 4)
    moved = data.rename(tmp_path / "elsewhere")
    InferenceJob(file_jobs.inference(tmp_path, moved)).run()
    assert ids(tmp_path) == list(range(COUNT))
    assert not [record for record in caplog.records if "providers.dataset" in record.getMessage()]


@pytest.mark.parametrize("ranks", [1, 2])
def test_samples_of_like_length_are_together_and_results_in_order(tmp_path: Path, data: Path, ranks: int) -> None:
    sizes = run(file_jobs.inference(tmp_path, data, **BY_LENGTH), ranks)
    assert ids(tmp_path) == list(range(COUNT))
    # The length of a record is that of its line: the text and some 25 bytes.
    assert all(number == 1 or number * longest <= 300 for rank in sizes for longest, number in rank)
    assert len({number for rank in sizes for _, number in rank}) > 2
    assert len({len(rank) for rank in sizes}) == 1


def test_rate_and_time_left_are_logged(tmp_path: Path, data: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="keepstep")
    InferenceJob(file_jobs.inference(tmp_path, data, logging={"period_steps": 3})).run()
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("step ")]
    assert [text.split("  ")[1] for text in told] == ["24 samples done", "48 samples done", "53 samples done"]
    assert all("samples/s, 0:00:0" in text for text in told)


def test_what_cannot_work_is_refused_with_the_key(tmp_path: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match=r"providers\.dataset: paths: .*nothing: there is no such file"):
        InferenceJob(file_jobs.inference(tmp_path, tmp_path / "nothing")).run()
    config = file_jobs.inference(tmp_path, data, **BY_LENGTH)
    providers = config.providers.model_copy(update={"dataset": "tests.rig.jobs:dataset"})
    with pytest.raises(ConfigError, match=r"by_length: a Samples does not say how long its samples are"):
        InferenceJob(config.model_copy(update={"providers": providers})).run()
