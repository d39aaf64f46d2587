"""What was logged in training: the tracker's rows, or the history that a Trainer keeps in its checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepstep.ops.report.logs import METRICS, RunLogs
from keepstep.plan.report.decider import EVAL_PREFIX, EVAL_SET
from keepstep.plan.report.facts import CheckpointFact, Row, number, whole
from keepstep.plan.report.logged import Logged
from keepstep.plan.scores import SCORED, Score
from keepstep.plan.trainer_files import STATE
from keepstep.storage.json_file import read_json

# How long something took is no score.
_SPEEDS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


def tracked(folder: Path, logs: RunLogs, notes: list[str]) -> Logged:
    """What the default tracker has. Of earlier attempts that never saved it only says that there are some."""
    found = logs.metrics.look(notes)
    earlier = len(list(folder.glob(f"{METRICS}.previous-*")))
    if earlier:
        notes.append(f"{earlier} files {METRICS}.previous-<n>, of attempts that never saved, are not shown")
    return found


@dataclass(frozen=True)
class TrainerHistory:
    """What a Trainer's newest state tells: logged rows, scores of its evaluations, the last step, and all of it."""

    logged: tuple[Row, ...] = ()
    scores: tuple[Score, ...] = ()
    total_steps: int | None = None
    state: Row = field(default_factory=dict)


def of_a_trainer(folder: Path, checkpoints: Sequence[CheckpointFact]) -> TrainerHistory:
    """By the newest checkpoint with a Trainer's state; empty where there is none."""
    for one in reversed(checkpoints):
        state = read_json(folder / one.name / STATE)
        history = state.get("log_history")
        if isinstance(history, list):
            entries = [entry for entry in history if isinstance(entry, dict)]
            scores = tuple(_scores(entries, checkpoints))
            return TrainerHistory(tuple(map(_logged, entries)), scores, whole(state.get("max_steps")), state)
    return TrainerHistory()


def _logged(entry: dict[str, Any]) -> Row:
    """The training's part of an entry; the last one sums up the whole run, under names of its own."""
    names, parts = ("epoch", "total_flos"), (EVAL_PREFIX, "train_")
    return {name: value for name, value in entry.items() if name not in names and not name.startswith(parts)}


def _scores(entries: Sequence[dict[str, Any]], checkpoints: Sequence[CheckpointFact]) -> list[Score]:
    """Evaluations, each of the checkpoint of its step. A Trainer writes an entry for each of its data sets."""
    by_step: dict[int, dict[str, float]] = {}
    for entry in entries:
        step = whole(entry.get("step"))
        metrics = {
            name.removeprefix(EVAL_PREFIX): known
            for name, value in entry.items()
            if name.startswith(EVAL_PREFIX) and not name.endswith(_SPEEDS) and (known := number(value)) is not None
        }
        if step is not None and metrics:
            by_step.setdefault(step, {}).update(metrics)
    digests = {one.step: one.digest for one in checkpoints if one.digest}
    return [
        Score(step, digests.get(step, f"step-{step}"), EVAL_SET, SCORED, f"checkpoint-{step}", metrics)
        for step, metrics in by_step.items()
    ]
