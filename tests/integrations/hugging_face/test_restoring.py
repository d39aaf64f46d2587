"""What a Trainer leaves out when it goes on from a checkpoint, and comes back all the same."""

from functools import partial
from pathlib import Path

from transformers import EarlyStoppingCallback

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
