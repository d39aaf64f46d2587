"""A stop saves the step that it comes at, and nothing else happens: the run is the one that was not stopped."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import EarlyStoppingCallback, TrainerCallback

from keepstep.errors import StopRequested
from tests.rig.trainers import Ran, assert_twins, run, tiny_trainer


class SignalAt(TrainerCallback):
    """Sends this process a signal in the middle of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step + 1 == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


class NeverSave(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        control.should_save = False


def _stopped(build: Any, folder: Path, step: int) -> str:
    def with_signal(folder: Path, callbacks: Any) -> Any:
        return build(folder, callbacks=[*callbacks, SignalAt(step)])

    with pytest.raises(StopRequested) as caught:
        run(with_signal, folder, options={"handle_signals": True})
    return str(caught.value)


@pytest.mark.parametrize("strategy", ["epoch", "steps"])
def test_a_stopped_run_ends_as_one_that_was_not_stopped(strategy: str, tmp_path: Path) -> None:
    """Evaluations decide when it ends, and a stop must not bring one that was not due, nor lose one that was."""

    def build(folder: Path, callbacks: Any) -> Any:
        trainer = tiny_trainer(
            folder,
            callbacks=callbacks,
            eval_strategy=strategy,
            eval_steps=6,
            save_strategy=strategy,
            save_steps=6,
            metric_for_best_model="eval_loss",
            greater_is_better=False,
            max_steps=52,
        )
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=2))
        return trainer

    whole = run(build, tmp_path / "whole")
    assert "step 18 is saved" in _stopped(build, tmp_path / "run", 18)
    checkpoints = [path.name for path in (tmp_path / "run").glob("checkpoint-*")]
    assert "checkpoint-18" in checkpoints
    resumed = run(build, tmp_path / "run", resume=True)
    state, other = resumed.trainer.state, whole.trainer.state
    assert (state.global_step, state.best_metric) == (other.global_step, other.best_metric)
    owed = [row for row in whole.rows if row["step"] == 18 and "eval_loss" in row]
    assert resumed.rows == owed + whole.rows_after(18)
    assert_twins(whole, resumed, 18)


def test_a_stop_is_saved_whatever_others_decide(tmp_path: Path) -> None:
    def build(folder: Path, callbacks: Any) -> Any:
        trainer = tiny_trainer(folder, callbacks=callbacks)
        trainer.add_callback(NeverSave())
        return trainer

    assert "step 7 is saved" in _stopped(build, tmp_path, 7)
    assert (tmp_path / "checkpoint-7").is_dir()


def test_the_best_strategy_saves_a_stop_too(tmp_path: Path) -> None:
    build = partial(
        tiny_trainer,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="best",
        metric_for_best_model="eval_loss",
        greater_is_better=True,
    )
    assert "step 6 is saved" in _stopped(build, tmp_path, 6)
    assert (tmp_path / "checkpoint-6").is_dir()
    resumed: Ran = run(build, tmp_path, resume=True)
    assert resumed.trainer.state.global_step == 30
