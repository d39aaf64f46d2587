"""The training job as a whole, on one process: end, extension, finished runs, partial checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from keepstep.errors import ConfigError, GuardRefusedError, KeepstepError, StateMismatchError, StopRequested
from keepstep.job import loop as loop_module
from keepstep.job import train as train_module
from keepstep.job.train import TrainingJob
from keepstep.storage.survey import survey
from tests.rig import forks, jobs


def run(config: Any, ranks: int = 1) -> None:
    forks.values(lambda: TrainingJob(config).run(), ranks)


def steps(folder: Path) -> list[int]:
    return [c.found.step for c in survey(folder / "checkpoints" / "run").complete]


def test_a_run_saves_logs_and_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(jobs.training(tmp_path))
    assert steps(tmp_path) == [8, 12]
    assert list(jobs.rows(tmp_path)) == list(range(1, 13))
    assert jobs.state(tmp_path, 12)["task.seen"] == 48


@pytest.mark.parametrize("period", ["last_step", 5, 100])
def test_the_last_step_is_always_saved(tmp_path: Path, period: Any) -> None:
    run(jobs.training(tmp_path, checkpointing={"save_dir": str(tmp_path / "checkpoints"), "period_steps": period}))
    assert steps(tmp_path) == ([5, 10, 12] if period == 5 else [12])


def test_disabled_never_saves(tmp_path: Path) -> None:
    run(jobs.training(tmp_path, checkpointing={"save_dir": str(tmp_path / "checkpoints"), "period_steps": "disable"}))
    assert steps(tmp_path) == []


@pytest.mark.parametrize(("ranks", "middle"), [(1, 20), (1, 12), pytest.param(2, 12, marks=pytest.mark.slow)])
def test_a_raised_total_equals_a_run_that_had_it_from_the_same_state_on(
    tmp_path: Path, ranks: int, middle: int
) -> None:
    """20 steps, then 30: after the end, and from the middle."""
    total, raised = 20, 30
    a, b = tmp_path / "a", tmp_path / "b"
    run(jobs.training(a, total), ranks)
    keep = a / "checkpoints" / "run"
    if middle < total:
        b.mkdir()
        run_until(b, total, middle, ranks)
        keep = b / "checkpoints" / "run"
    start = survey(keep).complete[-1].found.step
    assert start == middle
    before = {row["step"]: row["lr"] for row in jobs.rows(b if middle < total else a).values()}
    extended = b if middle < total else a
    run(jobs.training(extended, raised), ranks)
    rates = {step: row["lr"] for step, row in jobs.rows(extended).items()}
    print(f"\nlearning rate, {total} then {raised} steps: {rates}")
    assert list(rates) == list(range(1, raised + 1))
    # What is done stays as it was; what follows is the curve of the new total at the same step.
    reference = tmp_path / "c"
    run(jobs.training(reference, raised), ranks)
    of_raised = {step: row["lr"] for step, row in jobs.rows(reference).items()}
    assert {s: rates[s] for s in rates if s <= middle} == {s: before[s] for s in before if s <= middle}
    assert {s: rates[s] for s in rates if s > middle} == {s: of_raised[s] for s in of_raised if s > middle}
    assert all(0 <= rate <= 0.05 for rate in rates.values())
    assert steps(extended) == [28, 30]
    # From the same state on nothing but the rates decides, and they are those of a run that always had the new total.
    assert jobs.state(extended, raised)["lr_scheduler.completed_steps"] == raised


def run_until(folder: Path, total: int, stop: int, ranks: int) -> None:
    """Run until the save of step `stop`, then die without a word."""

    def work() -> None:
        import os

        original = loop_module.leave_if_asked

        def die(checkpointer: Any, step: int, total: int) -> None:
            original(checkpointer, step, total)
            if step == stop:
                os._exit(9)

        loop_module.leave_if_asked = die
        TrainingJob(jobs.training(folder, total)).run()

    assert {end.status for end in forks.run(work, ranks)} == {9}


def test_the_extension_equals_a_run_from_the_same_state(tmp_path: Path) -> None:
    """Two copies of the same state, one of which is stopped once more: the same bits at the end."""
    import shutil

    run(jobs.training(tmp_path / "a", 20))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    run(jobs.training(tmp_path / "a", 30))
    run_until(tmp_path / "b", 30, 24, 1)
    run(jobs.training(tmp_path / "b", 30))
    assert jobs.state(tmp_path / "a", 30) == jobs.state(tmp_path / "b", 30)
    assert jobs.rows(tmp_path / "a") == jobs.rows(tmp_path / "b")


@pytest.mark.parametrize(("stop", "ranks"), [(4, 1), (8, 1), (8, 2), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_a_run_that_died_ends_in_the_same_bits(tmp_path: Path, ranks: int, stop: int) -> None:
    run(jobs.training(tmp_path / "a"), ranks)
    run_until(tmp_path / "b", 12, stop, ranks)
    run(jobs.training(tmp_path / "b"), ranks)
    assert jobs.state(tmp_path / "a", 12) == jobs.state(tmp_path / "b", 12)
    assert jobs.rows(tmp_path / "a") == jobs.rows(tmp_path / "b")


@pytest.mark.parametrize("total", [12, 9])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_finished_run_does_nothing_and_changes_not_one_byte(
    tmp_path: Path, ranks: int, total: int, caplog: pytest.LogCaptureFixture
) -> None:
    export = str(tmp_path / "export")
    run(jobs.training(tmp_path, export_to=export), ranks)
    before = jobs.tree_digest(tmp_path)
    providers = dict.fromkeys(jobs.PROVIDERS, "tests.rig.jobs:broken")

    def again() -> list[str]:
        import logging

        messages: list[str] = []

        class Collect(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                messages.append(record.getMessage())

        logger = logging.getLogger("keepstep")
        logger.setLevel(logging.INFO)
        logger.addHandler(Collect())
        TrainingJob(jobs.training(tmp_path, total, providers=providers, export_to=export)).run()
        return messages

    for _ in range(2):
        messages = forks.values(again, ranks)
        assert messages[0][-1] == "Training is already complete, nothing to do"
        assert messages[0].count("Training is already complete, nothing to do") == 1
        assert ("total_steps is 9, and step 12 is done already" in messages[0]) == (total == 9)
        assert all(others == [] for others in messages[1:])
    assert jobs.tree_digest(tmp_path) == before


def test_killed_between_the_last_commit_and_the_export_the_next_start_makes_the_export_and_nothing_else(
    tmp_path: Path,
) -> None:
    export = tmp_path / "export"

    def die_before_the_export() -> None:
        import os

        train_module.export_weights = lambda *_, **__: os._exit(9)
        TrainingJob(jobs.training(tmp_path, export_to=str(export))).run()

    assert forks.run(die_before_the_export)[0].status == 9
    assert steps(tmp_path) == [8, 12]
    assert not export.exists()
    before = jobs.tree_digest(tmp_path / "checkpoints")
    providers = dict.fromkeys(jobs.PROVIDERS, "tests.rig.jobs:broken")
    run(jobs.training(tmp_path, providers=providers, export_to=str(export)))
    assert jobs.tree_digest(tmp_path / "checkpoints") == before
    weights = load_file(export / "model.safetensors")
    saved = jobs.state(tmp_path, 12)
    assert {f"model.{name}": value.tolist() for name, value in weights.items()} == {
        key: value for key, value in saved.items() if key.startswith("model.")
    }
    assert json.loads((export / "keepstep.json").read_text())["step"] == 12


def test_a_raised_total_makes_a_new_export(tmp_path: Path) -> None:
    export = tmp_path / "export"
    run(jobs.training(tmp_path, 8, export_to=str(export)))
    first = load_file(export / "model.safetensors")
    run(jobs.training(tmp_path, 12, export_to=str(export)))
    second = load_file(export / "model.safetensors")
    assert json.loads((export / "keepstep.json").read_text())["step"] == 12
    assert not torch.equal(first["adapter.weight"], second["adapter.weight"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "export"]


def test_configuration_and_tokenizer_of_the_source_go_along_with_the_export(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    save_file(jobs.Net().state_dict(), base / "model.safetensors")
    export = tmp_path / "export"
    source = {"model_stage_factory": {"source_checkpoint": str(base)}}
    run(jobs.training(tmp_path, 4, export_to=str(export), **source))
    assert {path.name for path in export.iterdir()} == {"keepstep.json", "model.safetensors"}
    (base / "tokenizer.json").write_text("{}")
    run(jobs.training(tmp_path, 8, export_to=str(export), **source))
    assert (export / "tokenizer.json").read_text() == "{}"


class TestOnlyTrainableParameters:
    """A trainable-only checkpoint, and the frozen parameters from source_checkpoint."""

    PROVIDERS = {"model": "tests.rig.jobs:frozen_model"}  # noqa: RUF012

    def source(self, folder: Path) -> dict[str, torch.Tensor]:
        torch.manual_seed(5)
        weights = jobs.Net().state_dict()
        folder.mkdir(exist_ok=True)
        save_file(weights, folder / "model.safetensors")
        return weights

    def config(self, folder: Path, total: int = 12, **more: Any) -> Any:
        factory = {"source_checkpoint": str(folder / "base"), "checkpoint_only_trainable_parameters": True}
        return jobs.training(folder, total, providers=self.PROVIDERS, model_stage_factory=factory, **more)

    @pytest.mark.parametrize("ranks", [1, 2])
    def test_it_holds_only_parameters_that_require_gradients(self, tmp_path: Path, ranks: int) -> None:
        weights = self.source(tmp_path / "base")
        run(self.config(tmp_path, 8), ranks)
        saved = jobs.state(tmp_path, 8)
        names = {key for key in saved if key.startswith("model.")}
        assert names == {"model.adapter.weight", "model.adapter.bias"}
        size = sum(weights[name.removeprefix("model.")].nbytes for name in names)
        shards = (tmp_path / "checkpoints" / "run" / "save-8").glob("*.distcp")
        run(jobs.training(tmp_path / "full", 8), ranks)
        full = (tmp_path / "full" / "checkpoints" / "run" / "save-8").glob("*.distcp")
        frozen = weights["base.weight"].nbytes + weights["base.bias"].nbytes
        assert size < frozen
        # Weights and two moments of the frozen layer are missing, and nothing came in their place.
        assert sum(f.stat().st_size for f in full) - sum(f.stat().st_size for f in shards) > 3 * frozen

    def test_frozen_parameters_come_from_the_source_again_and_the_run_is_exact(self, tmp_path: Path) -> None:
        a, b = tmp_path / "a", tmp_path / "b"
        for folder in (a, b):
            folder.mkdir()
            self.source(folder / "base")
        run(self.config(a, export_to=str(a / "export")))

        def die() -> None:
            import os

            original = loop_module.leave_if_asked

            def leave(checkpointer: Any, step: int, total: int) -> None:
                original(checkpointer, step, total)
                if step == 4:
                    os._exit(9)

            loop_module.leave_if_asked = leave
            TrainingJob(self.config(b, export_to=str(b / "export"))).run()

        assert forks.run(die)[0].status == 9
        run(self.config(b, export_to=str(b / "export")))
        assert jobs.state(a, 12) == jobs.state(b, 12)
        assert jobs.rows(a) == jobs.rows(b)
        exports = [load_file(folder / "export" / "model.safetensors") for folder in (a, b)]
        assert exports[0].keys() == jobs.Net().state_dict().keys()
        assert all(torch.equal(exports[0][name], exports[1][name]) for name in exports[0])
        assert torch.equal(exports[0]["base.weight"], load_file(a / "base" / "model.safetensors")["base.weight"])

    def test_a_source_that_is_gone_or_changed_is_refused(self, tmp_path: Path) -> None:
        weights = self.source(tmp_path / "base")
        run(self.config(tmp_path, 4))
        save_file(weights | {"base.bias": weights["base.bias"] + 1e-3}, tmp_path / "base" / "model.safetensors")
        with pytest.raises(GuardRefusedError, match=r"base_weights +\w+… +\w+… +refuse"):
            run(self.config(tmp_path, 8))
        (tmp_path / "base" / "model.safetensors").unlink()
        with pytest.raises(ConfigError, match="no model state there"):
            run(self.config(tmp_path, 8))
        assert steps(tmp_path) == [4]


def test_a_stop_request_saves_the_step_and_the_next_start_goes_on(tmp_path: Path) -> None:
    run(jobs.training(tmp_path / "a"))

    def stopped() -> None:
        import os
        import signal

        original = jobs.Task.loss

        def loss(self: jobs.Task, model: Any, batch: Any) -> torch.Tensor:
            if self.seen == 25:  # in the middle of step 7
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGINT)
            return original(self, model, batch)

        jobs.Task.loss = loss
        TrainingJob(jobs.training(tmp_path / "b")).run()

    (end,) = forks.run(stopped)
    assert isinstance(end.error, StopRequested)
    assert end.status == 75
    assert steps(tmp_path / "b") == [4, 7]
    run(jobs.training(tmp_path / "b"))
    assert jobs.rows(tmp_path / "a") == jobs.rows(tmp_path / "b")
    assert jobs.state(tmp_path / "a", 12) == jobs.state(tmp_path / "b", 12)


def test_a_stop_request_where_saving_is_disabled_saves_nothing_and_says_so(tmp_path: Path) -> None:
    checkpointing = {"save_dir": str(tmp_path / "checkpoints"), "period_steps": "disable"}

    def stopped() -> None:
        import os
        import signal

        original = jobs.Task.loss

        def loss(self: jobs.Task, model: Any, batch: Any) -> torch.Tensor:
            os.kill(os.getpid(), signal.SIGTERM)
            return original(self, model, batch)

        jobs.Task.loss = loss
        TrainingJob(jobs.training(tmp_path, checkpointing=checkpointing)).run()

    (end,) = forks.run(stopped)
    assert isinstance(end.error, KeepstepError)
    assert "nothing was saved" in str(end.error)
    assert end.status == 1
    assert steps(tmp_path) == []


def test_rows_after_the_last_save_are_rewound(tmp_path: Path) -> None:
    run_until(tmp_path, 12, 6, 1)  # step 4 is saved, 5 and 6 are logged
    assert list(jobs.rows(tmp_path)) == [1, 2, 3, 4, 5, 6]
    run(jobs.training(tmp_path))
    assert list(jobs.rows(tmp_path)) == list(range(1, 13))


@pytest.mark.parametrize(
    ("trainer", "ranks", "text"),
    [
        ({"batching": {"global_batch_size": 4, "microbatch_size": 3}}, 1, "sizes that work: 1, 2, 4"),
        ({"batching": {"global_batch_size": 3}}, 2, "rank counts that work: 1, 3"),
        ({"lr_scheduler": {"phases": [{"steps": 13, "to": 1.0}]}}, 1, "the phases take 13 steps, total_steps is 12"),
        ({"model_stage_factory": {"source_checkpoint": "nowhere"}}, 1, "source_checkpoint = nowhere"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    tmp_path: Path, trainer: dict[str, Any], ranks: int, text: str
) -> None:
    providers = {"model": "tests.rig.jobs:broken"}
    with pytest.raises(ConfigError, match=text):
        run(jobs.training(tmp_path, providers=providers, **trainer), ranks)
    assert list(tmp_path.iterdir()) == []


def test_export_needs_checkpoints(tmp_path: Path) -> None:
    checkpointing = {"save_dir": str(tmp_path), "period_steps": "disable"}
    with pytest.raises(ConfigError, match="export_to needs the last checkpoint"):
        run(jobs.training(tmp_path, checkpointing=checkpointing, export_to=str(tmp_path / "out")))


def test_a_damaged_last_checkpoint_is_not_exported_but_made_again(tmp_path: Path) -> None:
    export = tmp_path / "export"
    run(jobs.training(tmp_path, export_to=str(export)))
    good = load_file(export / "model.safetensors")
    for file in export.iterdir():
        file.unlink()
    shard = tmp_path / "checkpoints" / "run" / "save-12" / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    run(jobs.training(tmp_path, export_to=str(export)))
    again = load_file(export / "model.safetensors")
    assert all(torch.equal(again[name], good[name]) for name in good)
    assert steps(tmp_path) == [8, 12]


def test_adapters_that_the_base_model_does_not_have_keep_their_first_values(tmp_path: Path) -> None:
    torch.manual_seed(5)
    weights = {name: value for name, value in jobs.Net().state_dict().items() if name.startswith("base.")}
    (tmp_path / "base").mkdir()
    save_file(weights, tmp_path / "base" / "model.safetensors")
    factory = {"source_checkpoint": str(tmp_path / "base"), "checkpoint_only_trainable_parameters": True}
    config = jobs.training(tmp_path, 4, providers={"model": "tests.rig.jobs:frozen_model"}, model_stage_factory=factory)
    run(config)
    assert {k for k in jobs.state(tmp_path, 4) if k.startswith("model.")} == {
        "model.adapter.weight",
        "model.adapter.bias",
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_export_that_cannot_work_is_refused_before_the_training(tmp_path: Path, ranks: int) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    providers = {"model": "tests.rig.jobs:broken"}
    (end, *_) = forks.run(
        lambda: TrainingJob(jobs.training(tmp_path, providers=providers, export_to=str(tmp_path / "out"))).run(), ranks
    )
    assert end.status == 2
    assert "choose another folder" in str(end.error)
    assert not (tmp_path / "checkpoints").exists()


def test_a_source_that_lacks_a_name_is_refused_at_the_start(tmp_path: Path) -> None:
    weights = jobs.Net().state_dict()
    del weights["base.bias"]
    (tmp_path / "base").mkdir()
    save_file(weights, tmp_path / "base" / "model.safetensors")
    factory = {"source_checkpoint": str(tmp_path / "base"), "checkpoint_only_trainable_parameters": True}
    providers = {"model": "tests.rig.jobs:frozen_model"}
    with pytest.raises(StateMismatchError, match=r"lacks base\.bias"):
        run(jobs.training(tmp_path, 4, providers=providers, model_stage_factory=factory))


@pytest.mark.parametrize(
    ("providers", "text"),
    [
        ({"model": "tests.rig.jobs:broken"}, "failed: RuntimeError: this provider must not be called"),
        ({"model": "tests.rig.jobs:Net"}, "must take 1 arguments"),
        ({"dataset": "tests.rig.jobs:nothing"}, "returned nothing"),
    ],
)
def test_a_provider_that_fails_is_named(tmp_path: Path, providers: dict[str, str], text: str) -> None:
    (name,) = providers
    with pytest.raises(ConfigError, match=f"providers.{name} = 'tests.rig.jobs:.*{text}"):
        run(jobs.training(tmp_path, providers=providers))


def test_a_data_set_smaller_than_a_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="50 samples are fewer than global_batch_size 60"):
        run(jobs.training(tmp_path, batching={"global_batch_size": 60}))


def test_another_kind_of_optimizer_is_refused_and_changed_options_are_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(jobs.training(tmp_path, 4))
    with pytest.raises(StateMismatchError, match=r"of another kind when this was saved: it had the options .*betas"):
        run(jobs.training(tmp_path, 8, optimizer={"kind": "sgd", "lr": 0.05}))
    TrainingJob(jobs.training(tmp_path, 8, optimizer={"lr": 0.05, "weight_decay": 0.7})).run()
    assert "optimizer option weight_decay is 0.01 in the checkpoint and 0.7 in this job" in caplog.text
