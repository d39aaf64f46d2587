"""What was logged in training: the tracker's rows, or the history that a Trainer keeps in its checkpoints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keepstep.ops.report.rows import read_rows
from keepstep.plan.report.facts import CheckpointFact, Row, number, whole
from keepstep.plan.scores import SCORED, Score
from keepstep.plan.trainer_files import STATE
from keepstep.storage.json_file import read_json

METRICS = "metrics.jsonl"
_EVAL = "eval_"
_SET = "eval"
# How long something took is no score.
_SPEEDS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


def tracked(folder: Path, notes: list[str]) -> list[Row]:
    """Rows of the default tracker. Of earlier attempts that never saved it only says that there are some."""
    rows: list[Row] = list(read_rows(folder / METRICS, notes))
    earlier = len(list(folder.glob(f"{METRICS}.previous-*")))
    if earlier:
        notes.append(f"{earlier} files {METRICS}.previous-<n>, of attempts that never saved, are not shown")
    return rows


def of_a_trainer(folder: Path, checkpoints: Sequence[CheckpointFact]) -> tuple[list[Row], list[Score], int | None]:
    """Of the newest checkpoint with a Trainer's state: logged rows, scores of its evaluations, and the last step."""
    for one in reversed(checkpoints):
        state = read_json(folder / one.name / STATE)
        history = state.get("log_history")
        if isinstance(history, list):
            entries = [entry for entry in history if isinstance(entry, dict)]
            return [_logged(entry) for entry in entries], _scores(entries, checkpoints), whole(state.get("max_steps"))
    return [], [], None


def _logged(entry: dict[str, Any]) -> Row:
    """The training's part of an entry; the last one sums up the whole run, under names of its own."""
    left_out = ("epoch", "total_flos")
    return {
        name: value for name, value in entry.items() if name not in left_out and not name.startswith((_EVAL, "train_"))
    }


def _scores(entries: Sequence[dict[str, Any]], checkpoints: Sequence[CheckpointFact]) -> list[Score]:
    """Evaluations, each of the checkpoint of its step. A Trainer writes an entry for each of its data sets."""
    by_step: dict[int, dict[str, float]] = {}
    for entry in entries:
        step = whole(entry.get("step"))
        metrics = {
            name.removeprefix(_EVAL): known
            for name, value in entry.items()
            if name.startswith(_EVAL) and not name.endswith(_SPEEDS) and (known := number(value)) is not None
        }
        if step is not None and metrics:
            by_step.setdefault(step, {}).update(metrics)
    digests = {one.step: one.digest for one in checkpoints if one.digest}
    return [
        Score(step, digests.get(step, f"step-{step}"), _SET, SCORED, f"checkpoint-{step}", metrics)
        for step, metrics in by_step.items()
    ]
