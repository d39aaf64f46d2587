"""An input that several jobs share, as the tasks of a SLURM array do: each position once in what is merged."""

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from keepstep.config import load_job
from keepstep.config.address import parse_address
from keepstep.config.job import JobConfig
from keepstep.errors import ConfigError, DamagedOutputsError
from keepstep.job import inference as inference_module
from keepstep.job.can_resume import can_resume
from keepstep.job.inference import InferenceJob
from keepstep.ops.outputs.look import look
from keepstep.ops.outputs.merge import merge
from keepstep.ops.outputs.push import push
from keepstep.ops.outputs.verify import verify
from tests.rig import forks, jobs, outputs

SCRIPTS = Path(__file__).parents[2] / "examples" / "slurm"
COUNT = 5
# 11 inputs in 5 shards, of 2, 2, 2, 2 and 3; batches of 1, so that there are steps to die at.
LENGTH = 11


def shard(folder: Path, index: int, count: int = COUNT, **settings: Any) -> JobConfig:
    settings.setdefault("batching", {"global_batch_size": 1})
    settings.setdefault("checkpointing", {"period_steps": 1})
    return outputs.config(folder, shard={"index": index, "count": count}, **settings)


def run(config: JobConfig, stop: int | None = None) -> None:
    """Run a job in this process, which is a fork; or die after a step of it."""
    original = inference_module.leave_if_asked

    def leave(checkpointer: Any, step: int, total: int) -> None:
        original(checkpointer, step, total)
        if step == stop:
            os._exit(9)

    inference_module.leave_if_asked = leave
    outputs.length = LENGTH
    InferenceJob(config).run()
    inference_module.leave_if_asked = original


def run_all(folder: Path, indices: Sequence[int]) -> None:
    forks.values(lambda: [run(shard(folder, index)) for index in indices])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All shards, of which one was killed and started again."""
    folder = tmp_path_factory.mktemp("shards")
    assert {end.status for end in forks.run(lambda: run(shard(folder, 4), stop=2))} == {9}
    run_all(folder, [3, 0, 4])
    open_shards = look(folder / "out").open_shards
    assert open_shards == ["shard-00001-of-00005 is missing", "shard-00002-of-00005 is missing"]
    with pytest.raises(ConfigError, match=r"has not ended .shard-00001-of-00005 is missing"):
        merge(folder / "out", folder / "too_early.jsonl")
    assert verify(folder / "out").problems == tuple(open_shards)
    merge(folder / "out", folder / "partial.jsonl", partial=True)
    assert ids(folder / "partial.jsonl") == [0, 1, 6, 7, 8, 9, 10]
    # At the same time, as an array does.
    ranks = [forks.start(lambda index=index: run(shard(folder, index)))[0] for index in (1, 2)]
    for rank in ranks:
        rank.go()
    assert [end.status for end in forks.wait_all(ranks)] == [0, 0]
    return folder


def ids(path: Path) -> list[int]:
    return [json.loads(line)["id"] for line in path.read_text().split("\n")[:-1]]


def test_shards_whose_passes_are_of_like_length_are_merged_in_order(tmp_path: Path) -> None:
    batching = {"global_batch_size": 4, "by_length": {"budget": 120}}

    def both() -> None:
        logging.getLogger("keepstep").setLevel("INFO")
        logging.getLogger("keepstep").addHandler(logging.FileHandler(tmp_path / "told"))
        for index in (1, 0):
            run(shard(tmp_path, index, 2, dataset="tests.rig.outputs:texts", batching=batching))

    forks.values(both)
    lines = (tmp_path / "told").read_text().splitlines()
    assert [line.split("  ")[1] for line in lines if "step 2/2" in line] == ["6 samples done", "5 samples done"]
    assert all(line.endswith(", 0:00:00 left") for line in lines if "step 2/2" in line)
    assert merge(tmp_path / "out", tmp_path / "all.jsonl").rows == LENGTH
    assert ids(tmp_path / "all.jsonl") == list(range(LENGTH))


def test_shards_make_the_output_of_one_job(finished: Path, tmp_path: Path) -> None:
    found = look(finished / "out")
    assert (found.complete, found.rows, found.inputs, len(found.shards)) == (True, LENGTH, LENGTH, COUNT)
    assert verify(finished / "out").problems == ()
    assert verify(finished / "out" / "shard-00004-of-00005").problems == ()
    merge(finished / "out", tmp_path / "all.jsonl")

    def whole() -> None:
        outputs.length = LENGTH
        InferenceJob(outputs.config(tmp_path)).run()

    forks.values(whole)
    merge(tmp_path / "out", tmp_path / "whole.jsonl")
    assert (tmp_path / "all.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert sorted(path.name for path in (finished / "saves" / "shard-00004-of-00005").glob("save-*")) == [
        "save-2",
        "save-3",
    ]


def test_another_start_of_a_shard_changes_nothing(finished: Path) -> None:
    before = jobs.tree_digest(finished)
    run_all(finished, [4])
    assert jobs.tree_digest(finished) == before

    def asked() -> tuple[str, int | None]:
        outputs.length = LENGTH
        found = can_resume(shard(finished, 4), 1)
        return found.outcome, found.remaining_steps

    assert forks.values(asked) == [("complete", 0)]


def test_more_shards_than_inputs(tmp_path: Path) -> None:
    def two_inputs() -> None:
        for index in range(3):
            outputs.length = 2
            InferenceJob(shard(tmp_path, index, 3)).run()

    forks.values(two_inputs)
    assert verify(tmp_path / "out").problems == ()
    merge(tmp_path / "out", tmp_path / "all.jsonl")
    assert ids(tmp_path / "all.jsonl") == [0, 1]
    assert not list((tmp_path / "saves" / "shard-00000-of-00003").glob("save-*"))


def test_each_shard_has_a_mirror_of_its_own(tmp_path: Path) -> None:
    mirror = {"period_steps": 1, "mirror": f"file://{tmp_path / 'mirror'}"}

    def job() -> None:
        for index in (0, 1):
            run(shard(tmp_path, index, 2, checkpointing=mirror, batching={"global_batch_size": 8}))

    forks.values(job)
    assert sorted(path.name for path in (tmp_path / "mirror").iterdir()) == [
        "shard-00000-of-00002",
        "shard-00001-of-00002",
    ]
    shutil.rmtree(tmp_path / "saves")
    before = jobs.tree_digest(tmp_path / "out")
    forks.values(job)
    assert jobs.tree_digest(tmp_path / "out") == before
    assert (tmp_path / "saves" / "shard-00001-of-00002" / "save-1").is_dir()


def test_another_division_is_refused(finished: Path) -> None:
    before = jobs.tree_digest(finished)

    def refused() -> None:
        outputs.length = LENGTH
        for config in (shard(finished, 0, 4), outputs.config(finished)):
            with pytest.raises(ConfigError, match=r"holds shard-00000-of-00005"):
                can_resume(config, 1)
            with pytest.raises(Exception, match=r"holds shard-00000-of-00005, and this would be"):
                InferenceJob(config).run()

    forks.values(refused)
    assert jobs.tree_digest(finished) == before


def test_shards_are_pushed_one_by_one(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="push each to an address of its own"):
        push(finished / "out", parse_address(f"file://{tmp_path}/copy"))
    pushed = push(finished / "out" / "shard-00004-of-00005", parse_address(f"file://{tmp_path}/copy"))
    assert (pushed.parts, pushed.complete) == (3, True)


def test_a_shard_of_another_input_is_not_merged(finished: Path, tmp_path: Path) -> None:
    def longer() -> None:
        outputs.length = LENGTH + 1
        InferenceJob(shard(tmp_path, 2)).run()

    forks.values(longer)
    mixed = shutil.copytree(finished / "out", tmp_path / "mixed")
    shutil.rmtree(mixed / "shard-00002-of-00005")
    shutil.copytree(tmp_path / "out" / "shard-00002-of-00005", mixed / "shard-00002-of-00005")
    problems = verify(mixed).problems
    assert "shard 2 and shard 0 are not of one input: 12 samples in 5 shards, and 11 in 5" in problems
    with pytest.raises(DamagedOutputsError, match="not of one input"):
        merge(mixed, tmp_path / "mixed.jsonl")


def test_a_part_of_a_shard_is_gone(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished / "out", tmp_path / "copy")
    part = min((copy / "shard-00003-of-00005").glob("part-*"))
    part.unlink()
    assert verify(copy).problems == (
        f"shard-00003-of-00005/{part.name} is gone",
        "shard-00003-of-00005: no part holds position 6",
    )


def test_a_task_of_the_array_is_the_shard_of_its_index(tmp_path: Path) -> None:
    for script in SCRIPTS.glob("*.sbatch"):
        shutil.copy(script, tmp_path)
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "3", "SLURM_SUBMIT_DIR": str(tmp_path), "KEEPSTEP": "echo"}
    words = ["bash", str(tmp_path / "infer-array.sbatch"), "job.yaml", "--set", "a=b"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "infer job.yaml --set a=b --set inference.shard.index=3\n"


def test_an_array_says_the_index_on_the_command_line(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    text = "providers: {model: a:b, dataset: a:b, task: a:b}\ninference:\n  batching: {global_batch_size: 1}\n"
    job.write_text(
        f"{text}  checkpointing: {{save_dir: s, period_steps: 1}}\n  outputs: {{to: o}}\n  shard: {{count: 8}}\n"
    )
    config = load_job(job, ["inference.shard.index=7"])
    assert config.inference is not None
    assert (config.inference.shard.index, config.inference.shard.count) == (7, 8)  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="8 is no shard of 8; the last one is 7"):
        load_job(job, ["inference.shard.index=8"])
    with pytest.raises(ConfigError, match=r"shard\.index: missing"):
        load_job(job)
    with pytest.raises(ConfigError, match="shard goes with outputs"):
        load_job(job, ["inference.shard.index=0", "inference.outputs=null"])
