"""What a Trainer leaves out when it goes on from a checkpoint, and comes back all the same."""

from functools import partial
from pathlib import Path
from typing import Any

from transformers import EarlyStoppingCallback, TrainerCallback

from tests.rig.trainers import assert_twins, run, tiny_trainer


def test_an_evaluation_at_the_end_of_an_epoch_is_made_up_for(tmp_path: Path) -> None:
    """The save of an epoch's last step comes before that epoch's evaluation: killed between them, it is still owed."""
    build = partial(tiny_trainer, eval_strategy="epoch", save_steps=13)
    whole = run(build, tmp_path / "whole")
    run(build, tmp_path / "run", stop=14)
    resumed = run(build, tmp_path / "run", resume=True)
    owed = [row for row in whole.rows if row["step"] == 13 and "eval_loss" in row]
    assert len(owed) == 1
    assert resumed.rows == owed + whole.rows_after(13)
    assert_twins(whole, resumed, 13)


def test_an_evaluation_that_ended_the_run_is_heard_of_after_a_kill(tmp_path: Path) -> None:
    def build(folder: Path, callbacks: object) -> object:
        trainer = tiny_trainer(
            folder,
            callbacks=list(callbacks),  # type: ignore[call-overload]
            eval_strategy="epoch",
            save_steps=13,
            metric_for_best_model="eval_loss",
            greater_is_better=True,  # it falls, so the first evaluation is the best
            max_steps=60,
        )
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=1))
        return trainer

    whole = run(build, tmp_path / "whole")
    assert whole.trainer.state.global_step == 26
    run(build, tmp_path / "run", stop=25)
    again = run(build, tmp_path / "run", resume=True)
    assert again.trainer.state.global_step == 26
    assert again.rows == [row for row in whole.rows if row["step"] == 13 and "eval_loss" in row] + whole.rows_after(13)
    third = run(build, tmp_path / "run", resume=True)
    assert third.seen == []


def test_with_more_steps_the_rate_of_the_very_next_one_is_of_the_present_schedule(tmp_path: Path) -> None:
    """What the optimizer holds was worked out for the end that the run had before: there it was 0."""
    build = partial(tiny_trainer, lr_scheduler_type="linear", warmup_steps=0)
    run(partial(build, max_steps=10), tmp_path)
    longer = run(partial(build, max_steps=20), tmp_path, resume=True)
    rates = [row["learning_rate"] for row in longer.rows if "learning_rate" in row]
    assert rates == [(1e-2 * ((20 - done) / 20)).hex() for done in range(10, 20)]


def test_a_rate_that_a_callback_has_set_stays(tmp_path: Path) -> None:
    class Halves(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **more: Any) -> None:
            for group in optimizer.param_groups if state.global_step == 5 else ():
                group["lr"] /= 2

    def build(folder: Path, callbacks: Any) -> Any:
        return tiny_trainer(folder, callbacks=[*callbacks, Halves()], max_steps=8)

    whole = run(build, tmp_path / "whole")
    run(build, tmp_path / "run", stop=7)
    assert_twins(whole, run(build, tmp_path / "run", resume=True), 5)
