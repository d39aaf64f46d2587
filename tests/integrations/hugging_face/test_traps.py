"""What goes wrong around a Trainer's checkpoints elsewhere, a test for each."""

import json
import logging
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

from keepstep.errors import (
    CheckpointNotFoundError,
    DamagedCheckpointError,
    GuardRefusedError,
    ResumeError,
    SaveError,
    StateMismatchError,
    StopRequested,
)
from keepstep.integrations.hugging_face import make_resumable
from keepstep.plan.layout import TRAINER
from keepstep.storage.survey import survey
from keepstep.storage.verify import verify_files
from tests.rig.trainers import (
    Killed,
    Numbers,
    Ran,
    StopAt,
    assert_twins,
    run,
    set_seed,
    tiny_model,
    tiny_trainer,
)

SCORES = {2: 1.0, 4: 0.25, 6: 0.5, 8: 0.75}


class Scored(Trainer):
    """Its evaluation gives a score that is known before."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = {"eval_loss": SCORES[self.state.global_step]}
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


BEST = {
    "kind": Scored,
    "max_steps": 8,
    "save_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "load_best_model_at_end": True,
    "metric_for_best_model": "loss",
    "greater_is_better": False,
}


short = partial(tiny_trainer, max_steps=6, save_steps=2)


def started(folder: Path, resume: Any = True, options: dict[str, Any] | None = None, **more: Any) -> Any:
    """A trainer that has trained under keepstep."""
    made = make_resumable(short(folder, **more), **{"handle_signals": False, **(options or {})})
    made.train(resume_from_checkpoint=resume)
    return made


def killed(folder: Path, step: int, resume: Any = True, **more: Any) -> None:
    """The same, killed at the end of a step, before its save."""
    callbacks = [*more.pop("callbacks", []), StopAt(step)]
    with pytest.raises(Killed):
        started(folder, resume, callbacks=callbacks, **more)


def committed(folder: Path) -> list[int]:
    """The steps of a run's checkpoints, each of which is verified."""
    found = survey(folder, TRAINER).checkpoints
    for one in found:
        assert one.manifest is not None, one.path
        assert verify_files(one.path, one.manifest, one.manifest.files) == [], one.path
    return sorted(one.found.step for one in found)


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: held.clone() for name, held in trainer.model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(held, other[name]) for name, held in one.items())


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], str]]:
    with caplog.at_level(logging.INFO, logger="keepstep"):
        yield lambda: "\n".join(record.getMessage() for record in caplog.records if record.name == "keepstep")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run of six steps that nothing stopped."""
    return run(short, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def _seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seed") / "run"
    killed(folder, 5)
    return folder


@pytest.fixture
def half(_seed: Path, tmp_path: Path) -> Path:
    """The folder of such a run that was killed in its fifth step: checkpoints 2 and 4."""
    return Path(shutil.copytree(_seed, tmp_path / "run"))


# The best checkpoint.


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_best_checkpoint_has_its_own_name_and_stays(tmp_path: Path, mode: str) -> None:
    names: list[Any] = []

    class Look(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            place = tmp_path / f"checkpoint-{state.global_step}"
            held = json.loads((place / "trainer_state.json").read_text())["best_model_checkpoint"]
            names.append((state.global_step, held, state.best_model_checkpoint))

    made = started(tmp_path, **BEST, save_total_limit=1, callbacks=[Look()], options={"mode": mode})
    best = {2: 2, 4: 4, 6: 4, 8: 4}
    assert names == [(step, *[str(tmp_path / f"checkpoint-{best[step]}")] * 2) for step in best]
    assert made.state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    # The newest is there to go on from; the Trainer would delete it now, at the end of train().
    assert committed(tmp_path) == [4, 8]
    assert same(load_file(tmp_path / "checkpoint-4" / "model.safetensors"), _stored_names(made))


def test_rules_beside_save_total_limit(tmp_path: Path) -> None:
    started(tmp_path, max_steps=7, save_steps=1, save_total_limit=1, options={"keep": {"every_steps": 3}})
    assert committed(tmp_path) == [3, 6, 7]


def _stored_names(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: held for name, held in weights(trainer).items() if name != "lm_head.weight"}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_best_checkpoint_that_could_not_be_saved_is_not_the_best(tmp_path: Path, mode: str) -> None:
    class Failing(Scored):
        def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
            if self.state.global_step == 4:
                raise OSError(28, "No space left on device")
            super()._save_optimizer_and_scheduler(output_dir)

    seen: list[int] = []

    class Look(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            assert (tmp_path / f"checkpoint-{state.global_step}" / "manifest.json").is_file()
            seen.append(state.global_step)

    options = {"mode": mode, "on_save_error": "continue"}
    made = started(tmp_path, **{**BEST, "kind": Failing}, callbacks=[Look()], options=options)
    assert committed(tmp_path) == [2, 6, 8]
    assert seen == [2, 6, 8]
    assert made.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    assert json.loads((tmp_path / "checkpoint-8" / "trainer_state.json").read_text())["best_model_checkpoint"] == str(
        tmp_path / "checkpoint-2"
    )
    assert not list(tmp_path.glob(".checkpoint-*"))


def test_the_counter_of_early_stopping_comes_back(tmp_path: Path) -> None:
    def callbacks() -> list[Any]:
        return [EarlyStoppingCallback(early_stopping_patience=2)]

    killed(tmp_path, 7, **BEST, callbacks=callbacks())
    made = started(tmp_path, **BEST, callbacks=callbacks())
    # It was worse at step 6, once, and at step 8 once more: then it ends.
    (early,) = [one for one in made.callback_handler.callbacks if isinstance(one, EarlyStoppingCallback)]
    assert early.early_stopping_patience_counter == 2
    assert made.state.global_step == 8


# Who sees what, and when.


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_callbacks_are_told_of_committed_checkpoints_only(tmp_path: Path, mode: str) -> None:
    seen = []

    class Uploads(TrainerCallback):
        """As those of trackers that upload checkpoints do."""

        def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            place = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            found = [one for one in survey(tmp_path, TRAINER).complete if one.path == place]
            assert len(found) == 1, place
            assert found[0].manifest is not None
            assert verify_files(place, found[0].manifest, found[0].manifest.files) == []
            seen.append(state.global_step)

    started(tmp_path, callbacks=[Uploads()], options={"mode": mode})
    assert seen == [2, 4, 6]


def test_a_save_under_way_does_not_look_like_a_checkpoint(tmp_path: Path) -> None:
    seen = []

    class Looks(Trainer):
        def _save_rng_state(self, output_dir: str) -> None:
            seen.append((Path(output_dir).exists(), sorted(path.name for path in tmp_path.glob("checkpoint-*"))))
            super()._save_rng_state(output_dir)

    started(tmp_path, kind=Looks)
    assert seen == [(True, []), (True, ["checkpoint-2"]), (True, ["checkpoint-2", "checkpoint-4"])]


@pytest.mark.skipif(
    not hasattr(TrainingArguments, "enable_jit_checkpoint"), reason="transformers 4 has no just-in-time checkpoints"
)
def test_a_stop_signal_beside_just_in_time_checkpoints(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)

    class Preempted(TrainerCallback):
        def on_substep_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step == 2:  # within the third step
                signal.raise_signal(signal.SIGTERM)

    build = partial(short, callbacks=[Preempted()], gradient_accumulation_steps=2)
    made = make_resumable(build(tmp_path, enable_jit_checkpoint=True))
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(StopRequested, match="step 3 is saved"):
        made.train(resume_from_checkpoint=True)
    assert signal.getsignal(signal.SIGTERM) == before
    assert committed(tmp_path) == [2, 3]
    again = make_resumable(tiny_trainer(tmp_path, max_steps=6, save_steps=2, gradient_accumulation_steps=2))
    again.train(resume_from_checkpoint=True)
    other = run(partial(short, gradient_accumulation_steps=2), tmp_path / "other")
    assert same(weights(again), other.weights)


def test_a_file_of_the_user_in_a_checkpoint_harms_nothing(half: Path, whole: Ran) -> None:
    (half / "checkpoint-2" / ".scored").touch()
    (half / "checkpoint-4" / ".scored").write_text("0.5")
    made = started(half, save_total_limit=1)
    assert same(weights(made), whole.weights)
    assert committed(half) == [6]


def test_a_finished_run_that_is_started_again_does_nothing(tmp_path: Path, told: Any) -> None:
    started(tmp_path)
    before, names = content(tmp_path), sorted(str(path) for path in tmp_path.rglob("*"))
    called = []

    class Tracker(TrainerCallback):
        def __getattribute__(self, name: str) -> Any:
            if name.startswith("on_") and name != "on_init_end":
                called.append(name)
            return super().__getattribute__(name)

    for number in range(1, 4):
        made = started(tmp_path, callbacks=[Tracker()])
        assert told().count("Training is already complete") == number
        assert made.state.global_step == 6
    assert called == []
    assert content(tmp_path) == before
    assert sorted(str(path) for path in tmp_path.rglob("*")) == names


# Present arguments.


def test_present_arguments_win_and_are_listed(half: Path, told: Any) -> None:
    made = started(half, save_steps=5, learning_rate=5e-3)
    assert "save_steps: 2 -> 5" in told()
    assert "learning_rate: 0.01 -> 0.005" in told()
    assert committed(half) == [2, 4, 5, 6]
    rates = {row["step"]: row["learning_rate"] for row in made.state.log_history if "learning_rate" in row}
    other = {
        row["step"]: row["learning_rate"] for row in run(short, half.parent / "other").trainer.state.log_history[:6]
    }
    assert rates[4] == other[4]
    assert rates[6] == pytest.approx(other[6] / 2)


# What is refused, by name, before anything is loaded.


def test_a_checkpoint_of_the_model_alone_is_refused(tmp_path: Path) -> None:
    started(tmp_path, save_only_model=True, max_steps=2)
    with pytest.raises(StateMismatchError, match=r"lacks the optimizer.*scheduler\.pt.*rng_state\.pth"):
        started(tmp_path)


def test_an_adapter_that_lacks_tensors_is_refused(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True)

    def model() -> Any:
        set_seed(5)
        made = get_peft_model(tiny_model(), config)
        made.seen = made.base_model.model.seen
        return made

    run(partial(short, model=model(), max_steps=2), tmp_path, plain=True)
    file = tmp_path / "checkpoint-2" / "adapter_model.safetensors"
    tensors = load_file(file)
    assert len(tensors) == 8
    save_file(dict(list(tensors.items())[:2]), file)
    with pytest.raises(StateMismatchError, match="6 of 8 tensors are missing"):
        started(tmp_path, str(tmp_path / "checkpoint-2"), model=model())


def test_random_states_of_a_plain_checkpoint_are_missing_or_damaged(tmp_path: Path) -> None:
    run(partial(short, max_steps=2), tmp_path, plain=True)
    place = tmp_path / "checkpoint-2"
    file = place / "rng_state.pth"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DamagedCheckpointError, match=r"rng_state\.pth cannot be read"):
        started(tmp_path, str(place))
    file.unlink()
    with pytest.raises(StateMismatchError, match=r"random states.*rng_state\.pth"):
        started(tmp_path, str(place))


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("dataset_sha256", {"dataset": Numbers(samples=48)}),
        ("global_batch_size", {"gradient_accumulation_steps": 2}),
        ("seed", {"seed": 8}),
    ],
)
def test_another_job_is_refused_unless_it_is_accepted(half: Path, field: str, change: Any) -> None:
    before = content(half)
    with pytest.raises(GuardRefusedError, match=field) as refused:
        started(half, **change)
    assert refused.value.exit_code == 3
    assert content(half) == before
    assert started(half, options={"accept": [field]}, **change).state.global_step == 6


def test_another_number_of_ranks_is_refused_unless_it_is_accepted(tmp_path: Path) -> None:
    from tests.rig import forks, trainer_jobs

    folder = tmp_path / "run"
    forks.values(lambda: trainer_jobs.train(folder, total=2), size=2)
    (refused,) = forks.run(lambda: trainer_jobs.train(folder))
    assert isinstance(refused.error, GuardRefusedError)
    assert refused.status == 3
    assert "world_size" in str(refused.error)
    fields = ["world_size", "global_batch_size"]
    assert forks.values(lambda: trainer_jobs.train(folder, accept=fields))[0]["start"] == 2


# Lines of a run.


def test_an_earlier_checkpoint_by_path_begins_a_line(half: Path, whole: Ran, told: Any) -> None:
    killed(half, 3, str(half / "checkpoint-2"))
    assert committed(half) == [2, 4]
    # The start that asked for it died before a save: the next one follows, and does not take 4 for the newest.
    killed(half, 5)
    assert f"resumed from step 2 ({half / 'checkpoint-2'})" in told().splitlines()
    assert [path.name.rsplit("-", 1)[0] for path in (half / ".keepstep" / "set-aside").iterdir()] == ["checkpoint-4"]
    assert committed(half) == [2, 4]
    made = started(half)
    assert f"resumed from step 4 ({half / 'checkpoint-4'})" in told()
    assert same(weights(made), whole.weights)


def test_a_checkpoint_of_another_folder(half: Path, whole: Ran) -> None:
    source, folder = half / "checkpoint-4", half.parent / "other"
    before = content(half)
    killed(folder, 5, str(source))
    # Nothing was saved: True goes on from where it had begun.
    made = started(folder)
    assert_twins_of(made, whole)
    assert committed(folder) == [6]
    assert content(half) == before


def assert_twins_of(made: Any, whole: Ran) -> None:
    assert same(weights(made), whole.weights)
    assert made.model.seen == whole.seen[-len(made.model.seen) :]


def test_training_from_the_first_step_beside_checkpoints(half: Path, whole: Ran, told: Any) -> None:
    made = started(half, None)
    assert "goes on from step 0" in told()
    assert same(weights(made), whole.weights)
    assert committed(half) == [2, 4, 6]
    aside = sorted(path.name.rsplit("-", 1)[0] for path in (half / ".keepstep" / "set-aside").iterdir())
    assert aside == ["checkpoint-2", "checkpoint-4"]


def test_a_path_that_is_not_there(half: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="checkpoint-3"):
        started(half, str(half / "checkpoint-3"))


def test_a_plain_trainer_goes_on_from_our_checkpoints(tmp_path: Path) -> None:
    def drawing_nothing(features: Any) -> Any:
        ids = torch.nn.utils.rnn.pad_sequence([one["input_ids"] for one in features], batch_first=True)
        return {"input_ids": ids, "labels": ids.clone(), "index": torch.stack([one["index"] for one in features])}

    def build(folder: Path, callbacks: Any) -> Any:
        made = short(folder, callbacks=callbacks)
        made.data_collator = drawing_nothing
        return made

    ours = run(build, tmp_path / "ours")
    run(build, tmp_path / "again", stop=5)
    plain = run(build, tmp_path / "again", resume=True, plain=True)
    assert_twins(ours, plain, 4)


def test_a_save_that_fails_ends_training_with_its_error(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, output_dir: str) -> None:
        raise OSError(28, "No space left on device", output_dir)

    before = {name: held for name, held in content(half).items() if name.startswith("checkpoint-")}
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save_scaler", full)
        with pytest.raises(SaveError, match="No space left on device"):
            started(half)
    assert {name: held for name, held in content(half).items() if name.startswith("checkpoint-")} == before
    assert not list(half.glob(".checkpoint-*"))
    started(half)
    assert committed(half) == [2, 4, 6]


def test_the_number_of_tokens_comes_back(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="TRL is not installed")
    from tests.rig import trainer_jobs

    def tokens(folder: Path, callbacks: Any = ()) -> list[float]:
        made = make_resumable(trainer_jobs.trainer(folder, "adapter", callbacks=list(callbacks)), handle_signals=False)
        if callbacks:
            with pytest.raises(Killed):
                made.train(resume_from_checkpoint=True)
        else:
            made.train(resume_from_checkpoint=True)
        return [row["num_tokens"] for row in made.state.log_history if "num_tokens" in row]

    expected = tokens(tmp_path / "whole")
    tokens(tmp_path / "run", [StopAt(3)])
    assert tokens(tmp_path / "run") == expected
    assert expected[-1] > expected[0]


def test_a_new_beginning_that_dies_before_its_first_save_is_followed(half: Path, whole: Ran, told: Any) -> None:
    killed(half, 1, None)
    assert committed(half) == [2, 4]
    made = started(half)
    assert "starting from the first step" in told()
    assert same(weights(made), whole.weights)
    assert committed(half) == [2, 4, 6]


def test_a_stop_signal_while_a_save_goes_on_in_the_background(tmp_path: Path, whole: Ran) -> None:
    class Preempted(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if state.global_step == 2:
                signal.raise_signal(signal.SIGTERM)

    made = make_resumable(short(tmp_path, callbacks=[Preempted()]), mode="async")
    with pytest.raises(StopRequested, match="step 3 is saved"):
        made.train(resume_from_checkpoint=True)
    assert committed(tmp_path) == [2, 3]
    assert same(weights(started(tmp_path, options={"mode": "async"})), whole.weights)


def test_a_run_that_stopped_early_is_finished(tmp_path: Path, told: Any) -> None:
    def callbacks() -> list[Any]:
        return [EarlyStoppingCallback(early_stopping_patience=1)]

    assert started(tmp_path, **BEST, callbacks=callbacks()).state.global_step == 6
    before = content(tmp_path)
    assert started(tmp_path, **BEST, callbacks=callbacks()).state.global_step == 6
    assert "Training is already complete" in told()
    assert content(tmp_path) == before


def test_a_model_card_that_cannot_be_written_ends_nothing(tmp_path: Path, told: Any) -> None:
    class Cards(Trainer):
        """As the trainers of TRL do."""

        def _save_checkpoint(self, model: Any, trial: Any) -> None:
            self.create_model_card()
            super()._save_checkpoint(model, trial)

        def create_model_card(self, *args: Any, **kwargs: Any) -> None:
            raise OSError(28, "No space left on device")

    made = started(tmp_path, kind=Cards)
    assert committed(tmp_path) == [2, 4, 6]
    assert "could not write the model card" in told()
    assert "create_model_card" not in vars(made)


def test_a_loader_of_the_users_own_stays(tmp_path: Path) -> None:
    made = make_resumable(short(tmp_path), handle_signals=False)
    loader = made.get_train_dataloader()
    own = made.get_train_dataloader = lambda: loader
    made.train()
    assert made.get_train_dataloader is own
    assert committed(tmp_path) == [2, 4, 6]


def test_a_run_whose_folder_cannot_be_made_is_told(tmp_path: Path) -> None:
    made = make_resumable(short(tmp_path / "run"), handle_signals=False)
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    (tmp_path / "run").write_text("a file")
    with pytest.raises(ResumeError, match="making"):
        made.train()
