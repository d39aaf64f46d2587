"""What was logged in training: the tracker's rows, or the history that a Trainer keeps in its checkpoints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keepstep.ops.report.rows import read_rows
from keepstep.plan.report.facts import CheckpointFact, Row, number, whole
from keepstep.plan.scores import Measured
from keepstep.plan.trainer_files import STATE
from keepstep.storage.json_file import read_json

METRICS = "metrics.jsonl"
_EVAL = "eval_"
# How long something took is no score.
_SPEEDS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


def tracked(folder: Path, notes: list[str]) -> list[Row]:
    """Rows of the default tracker. Of earlier attempts that never saved it only says that there are some."""
    rows: list[Row] = list(read_rows(folder / METRICS, notes))
    earlier = len(list(folder.glob(f"{METRICS}.previous-*")))
    if earlier:
        notes.append(f"{earlier} files {METRICS}.previous-<n>, of attempts that never saved, are not shown")
    return rows


def of_a_trainer(folder: Path, checkpoints: Sequence[CheckpointFact]) -> tuple[list[Row], list[Measured], int | None]:
    """Of the newest checkpoint with a Trainer's state: logged rows, scores of its evaluations, and the last step."""
    for one in reversed(checkpoints):
        state = read_json(folder / one.name / STATE)
        history = state.get("log_history")
        if isinstance(history, list):
            entries = [entry for entry in history if isinstance(entry, dict)]
            return [_logged(entry) for entry in entries], _scores(entries), whole(state.get("max_steps"))
    return [], [], None


def _logged(entry: dict[str, Any]) -> Row:
    """The training's part of an entry; the last one sums up the whole run, under names of its own."""
    left_out = ("epoch", "total_flos")
    return {
        name: value for name, value in entry.items() if name not in left_out and not name.startswith((_EVAL, "train_"))
    }


def _scores(entries: Sequence[dict[str, Any]]) -> list[Measured]:
    found = []
    for entry in entries:
        step = whole(entry.get("step"))
        metrics = {
            f"eval/{name.removeprefix(_EVAL)}": known
            for name, value in entry.items()
            if name.startswith(_EVAL) and not name.endswith(_SPEEDS) and (known := number(value)) is not None
        }
        if step is not None and metrics:
            found.append(Measured(step, f"trainer-{step}", f"checkpoint-{step}", metrics))
    return found
