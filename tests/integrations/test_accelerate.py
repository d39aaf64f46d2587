"""Loops with Accelerate: saved at once, resumed in the same bits, and every doubt is an error by name."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from keepstep.errors import (
    ConfigError,
    DamagedCheckpointError,
    GuardRefusedError,
    KeepstepError,
    RunInUseError,
    StateMismatchError,
)
from keepstep.integrations.accelerate import Checkpoints, close, disable, enable, load_state, resumable, save_state
from keepstep.integrations.accelerate.files import missing_files
from keepstep.plan.layout import TRAINER
from keepstep.storage.survey import survey
from keepstep.storage.verify import verify_files
from tests.rig import forks
from tests.rig.accelerated import Loop, build, train, weights
from tests.rig.folders import names

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


@pytest.fixture(autouse=True, scope="module")
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is imported late comes once, and not in each rank."""
    train(Loop(str(tmp_path_factory.mktemp("warm")), total=1, period=1))


def steps(run: Path) -> list[int]:
    return [one.found.step for one in survey(run, TRAINER).complete]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def same(first: dict[str, Any], second: dict[str, Any], whole: dict[str, Any]) -> bool:
    rows = first["rows"] | second["rows"]
    return rows == whole["rows"] and all(second[part] == whole[part] for part in ("weights", "count"))


@pytest.mark.parametrize(
    "loader",
    [(), ("use_seedable_sampler",), ("use_stateful_dataloader",), ("dispatch_batches",)],
    ids=lambda names: names[0] if names else "as it is",
)
def test_the_middle_of_an_epoch_is_gone_on_from(tmp_path: Path, loader: tuple[str, ...]) -> None:
    settings: dict[str, Any] = {"loader": tuple((name, True) for name in loader)}
    whole = forks.values(lambda: train(Loop(str(tmp_path / "whole"), **settings)))[0]
    # An epoch has 11 steps: at its begin, in it, at its last step, in the next.
    for stop in (1, 11, 12) if not loader else (4, 11, 13):
        job = Loop(str(tmp_path / str(stop)), **settings)
        first = forks.values(lambda stop=stop: train(Loop(str(tmp_path / str(stop)), stop=stop, **settings)))[0]
        second = forks.values(lambda job=job: train(job))[0]
        assert second["start"] == stop
        assert same(first, second, whole)


def test_a_finished_run_has_nothing_to_do(tmp_path: Path) -> None:
    first = forks.values(lambda: train(Loop(str(tmp_path), total=2, period=2)))[0]
    second = forks.values(lambda: train(Loop(str(tmp_path), total=2, period=2)))[0]
    assert (second["start"], second["rows"]) == (2, {})
    assert second["weights"] == first["weights"]


def test_several_stops_and_accumulated_gradients(tmp_path: Path) -> None:
    def job(name: str, stop: int | None = None) -> dict[str, Any]:
        settings = {"accumulate": 2, "workers": 1}
        return forks.values(lambda: train(Loop(str(tmp_path / name), stop=stop, **settings)))[0]

    whole, parts = job("whole"), [job("parts", stop) for stop in (4, 8, None)]
    assert [one["start"] for one in parts] == [0, 4, 8]
    assert {step: row for one in parts for step, row in one["rows"].items()} == whole["rows"]
    assert parts[-1]["weights"] == whole["weights"]


@pytest.mark.parametrize("loader", [(), ("dispatch_batches",)], ids=["as it is", "dispatched"])
def test_two_ranks(tmp_path: Path, loader: tuple[str, ...]) -> None:
    settings: dict[str, Any] = {"loader": tuple((name, True) for name in loader), "total": 9}
    whole = forks.values(lambda: train(Loop(str(tmp_path / "whole"), **settings)), 2)
    # An epoch has 6 steps.
    run = str(tmp_path / "run")
    first = forks.values(lambda: train(Loop(run, stop=3, **settings)), 2)
    second = forks.values(lambda: train(Loop(run, stop=8, **settings)), 2)
    third = forks.values(lambda: train(Loop(run, **settings)), 2)
    for rank in range(2):
        assert [part[rank]["start"] for part in (first, second, third)] == [0, 3, 8]
        assert first[rank]["rows"] | second[rank]["rows"] | third[rank]["rows"] == whole[rank]["rows"]
        assert third[rank]["weights"] == whole[rank]["weights"]
    ended = forks.run(lambda: train(Loop(run)), 1)[0]
    assert isinstance(ended.error, GuardRefusedError)
    assert "world_size" in str(ended.error)


def test_fsdp_shards_are_committed_whole(tmp_path: Path) -> None:
    whole = forks.values(lambda: train(Loop(str(tmp_path / "whole"), total=6, fsdp=True)), 2)
    job = Loop(str(tmp_path / "run"), total=6, fsdp=True)
    first = forks.values(lambda: train(Loop(job.folder, total=6, stop=3, fsdp=True, period=2)), 2)
    assert {"pytorch_model_fsdp_0", "optimizer_0"} <= set(os.listdir(tmp_path / "run" / "checkpoint-3"))
    flip(tmp_path / "run" / "checkpoint-3" / "pytorch_model_fsdp_0" / "__1_0.distcp")
    second = forks.values(lambda: train(job), 2)
    assert [one["start"] for one in second] == [2, 2]
    assert all(same(first[rank], second[rank], whole[rank]) for rank in range(2))


def test_plain_accelerate_reads_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    written = forks.values(lambda: train(Loop(str(run), total=3, period=1)))[0]

    def read() -> Any:
        made, model, *_ = build(Loop(str(run)))
        made.load_state(str(run / "checkpoint-3"))
        return weights(model)

    assert forks.values(read)[0] == written["weights"]
    assert names(run) == ["checkpoint-2", "checkpoint-3"]
    for one in survey(run, TRAINER).complete:
        assert one.manifest is not None
        assert verify_files(one.path, one.manifest, one.manifest.files) == []


def test_damage_goes_to_quarantine_and_the_one_before_is_taken(tmp_path: Path) -> None:
    whole = forks.values(lambda: train(Loop(str(tmp_path / "whole"), total=6)))[0]
    run, job = tmp_path / "run", Loop(str(tmp_path / "run"), total=6)
    first = forks.values(lambda: train(Loop(job.folder, total=6, stop=4, period=1)))[0]
    flip(run / "checkpoint-4" / "random_states_0.pkl")
    second = forks.values(lambda: train(job))[0]
    assert second["start"] == 3
    assert same(first, second, whole)
    assert [path.name for path in (run / ".keepstep" / "quarantine").glob("checkpoint-4.*.json")]
    for step in steps(run):
        flip(run / f"checkpoint-{step}" / "model.safetensors")
    assert isinstance(forks.run(lambda: train(job))[0].error, DamagedCheckpointError)


def test_a_missing_file_is_told_by_name(tmp_path: Path) -> None:
    forks.values(lambda: train(Loop(str(tmp_path), total=1, period=1)))
    (tmp_path / "checkpoint-1" / "random_states_0.pkl").unlink()
    error = forks.run(lambda: train(Loop(str(tmp_path))))[0].error
    assert isinstance(error, DamagedCheckpointError)
    assert "random_states_0.pkl is missing" in str(error)


def test_another_set_of_objects_and_ranks_is_told_by_name_before_anything_is_loaded(tmp_path: Path) -> None:
    forks.values(lambda: train(Loop(str(tmp_path), total=1, period=1)))

    def more() -> Any:
        made, model, _, _, _, counter = build(Loop(str(tmp_path)))
        made.register_for_checkpointing(counter)
        before = weights(model)
        with pytest.raises(StateMismatchError, match=r"custom_checkpoint_1.pkl \(the registered Counter\)"):
            load_state(made, tmp_path)
        return weights(model) == before

    assert forks.values(more) == [True]

    def ranks() -> None:
        load_state(build(Loop(str(tmp_path)))[0], tmp_path, accept=["world_size", "global_batch_size"])

    errors = [str(one.error) for one in forks.run(ranks, 2)]
    assert errors[0] == errors[1]
    assert "random_states_1.pkl (the random states of rank 1)" in errors[0]


def test_random_states_that_cannot_be_set_are_an_error(tmp_path: Path) -> None:
    def job() -> None:
        made = build(Loop(str(tmp_path)))[0]
        made.register_save_state_pre_hook(lambda models, weights, folder: None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "get_rng_state", lambda: [1, 2, 3])
            save_state(made, tmp_path, 1)
        load_state(made, tmp_path)

    error = forks.run(job)[0].error
    assert isinstance(error, KeepstepError)


def test_an_empty_folder_is_the_start_and_one_that_cannot_be_listed_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    def job() -> int:
        made = build(Loop(str(tmp_path)))[0]
        with pytest.raises(KeepstepError, match="cannot look"):
            load_state(made, tmp_path / "file")
        (tmp_path / "empty").mkdir()
        return load_state(made, tmp_path / "empty") + load_state(made, tmp_path / "none")

    assert forks.values(job) == [0]


def test_a_second_job_is_refused(tmp_path: Path) -> None:
    def job() -> int:
        with Checkpoints(build(Loop(str(tmp_path)))[0], tmp_path) as second:
            return second.load()

    made = build(Loop(str(tmp_path)))[0]
    load_state(made, tmp_path)
    assert isinstance(forks.run(job)[0].error, RunInUseError)
    close(made)
    assert forks.values(job) == [0]


def test_an_error_on_one_rank_is_the_error_of_all(tmp_path: Path) -> None:
    def job() -> None:
        made, *_, counter = build(Loop(str(tmp_path)))
        save_state(made, tmp_path, 1)
        if made.process_index == 1:
            counter.state_dict = lambda: {}["gone"]  # type: ignore[method-assign]
        save_state(made, tmp_path, 2)

    errors = [str(one.error) for one in forks.run(job, 2)]
    assert errors[0] == errors[1]
    assert "rank 1 of 2" in errors[0]
    assert names(tmp_path) == ["checkpoint-1"]


def test_automatic_naming_deletes_nothing_and_its_limit_counts(tmp_path: Path) -> None:
    def job() -> None:
        made = build(Loop(str(tmp_path)))[0]
        made.project_configuration.set_directories(str(tmp_path / "project"))
        made.project_configuration.automatic_checkpoint_naming = True
        made.project_configuration.total_limit = 1
        for step in (1, 2, 3):
            save_state(made, tmp_path / "run", step)
        assert made.project_configuration.automatic_checkpoint_naming

    forks.values(job)
    assert names(tmp_path / "run") == ["checkpoint-3"]
    assert not (tmp_path / "project").exists()


def test_what_no_checkpoint_holds_is_not_saved(tmp_path: Path) -> None:
    def job() -> None:
        made, model, *_ = build(Loop(str(tmp_path), accumulate=2))
        with made.accumulate(model):
            pass
        with pytest.raises(ConfigError, match="accumulation of gradients"):
            save_state(made, tmp_path, 1)
        with pytest.raises(ConfigError, match="whole number"):
            save_state(made, tmp_path, -1)
        with pytest.raises(ConfigError, match="num_to_keep"):
            save_state(made, tmp_path, 1, num_to_keep=0)
        with pytest.raises(ConfigError, match="position"):
            resumable(made, [])
        with pytest.raises(ConfigError, match="num_to_keep"):
            Checkpoints(made, tmp_path, num_to_keep=0)

    forks.values(job)
    assert not list(tmp_path.glob("checkpoint-*"))


def test_accelerates_own_calls_after_enable(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-5"

    def job() -> None:
        made, model, *_ = build(Loop(str(tmp_path)))
        enable()
        try:
            made.save_state(str(path))
            before = weights(model)
            torch.nn.init.zeros_(model[0].weight)
            made.load_state(str(path))
            assert weights(model) == before
            made.save_state(str(tmp_path / "other"))
            flip(path / "optimizer.bin")
            with pytest.raises(DamagedCheckpointError):
                made.load_state(str(path))
            made.project_configuration.automatic_checkpoint_naming = True
            with pytest.raises(ConfigError, match="automatic_checkpoint_naming"):
                made.save_state()
        finally:
            disable()

    forks.values(job)
    assert (path / "manifest.json").exists()
    assert not (tmp_path / "other" / "manifest.json").exists()


def test_names_of_missing_files() -> None:
    needed = [("a.bin", "a"), ("b", "a folder"), ("c.x|c.y", "either")]
    assert missing_files(needed, ["a.bin", "b/1", "c.y"]) == []
    assert missing_files(needed, []) == ["a.bin (a)", "b (a folder)", "c.x or c.y (either)"]


def test_the_documented_loop_runs(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "accelerate.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)

    def job(folder: Path) -> Any:
        folder.mkdir(exist_ok=True)
        os.chdir(folder)
        space: dict[str, Any] = {}
        exec(block, space)
        return weights(space["model"]), space["start"]

    whole, start = forks.values(lambda: job(tmp_path / "a"))[0]
    assert start == 0
    assert forks.values(lambda: job(tmp_path / "a"))[0] == (whole, 30)
    assert json.loads((tmp_path / "a" / "runs/exp/checkpoint-30/run.json").read_text())["step"] == 30


def test_a_loop_whose_disk_is_gone_goes_on_from_the_mirror(tmp_path: Path) -> None:
    whole = forks.values(lambda: train(Loop(str(tmp_path / "whole"))))[0]
    settings: dict[str, Any] = {"mirror": f"file://{tmp_path / 'mirror'}"}
    half = forks.values(lambda: train(Loop(str(tmp_path / "run"), stop=6, **settings)))[0]
    shutil.rmtree(tmp_path / "run")

    again = forks.values(lambda: train(Loop(str(tmp_path / "run"), **settings)))[0]

    assert again["start"] > 0
    assert same(half, again, whole)
