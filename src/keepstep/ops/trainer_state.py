"""What a Trainer's checkpoint tells of itself: `trainer_state.json`, its files, and an adapter's configuration."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep.plan.trainer_files import ADAPTER_CONFIG, STATE, base_name, sort_out
from keepstep.storage.json_file import read_json


@dataclass(frozen=True)
class TrainerFacts:
    """What a Trainer's checkpoint is and holds. What it does not say is None.

    Attributes:
        epoch: completed, as a fraction.
        max_steps: of the training.
        best_metric: of the best checkpoint so far.
        best_checkpoint: name of that one's folder.
        weights: "full", "adapter", "full and adapter", or "none".
        base_model: what the adapter was trained on.
        optimizer, scheduler, scaler: whether their state is there.
        rng_ranks: ranks whose random states are there.
    """

    epoch: float | None
    max_steps: int | None
    best_metric: float | None
    best_checkpoint: str | None
    weights: str
    base_model: str | None
    optimizer: bool
    scheduler: bool
    scaler: bool
    rng_ranks: int


def trainer_facts(checkpoint: Path, names: Collection[str]) -> TrainerFacts:
    """Read them. What is not readable counts as not said: `verify` is the command that judges.

    Args:
        checkpoint: the folder.
        names: of its files.
    """
    state, held = read_json(checkpoint / STATE), sort_out(names)
    kinds = [name for name, files in (("full", held.weights), ("adapter", held.adapters)) if files]
    base = read_json(checkpoint / ADAPTER_CONFIG).get("base_model_name_or_path") if held.adapters else None
    return TrainerFacts(
        epoch=_number(state.get("epoch")),
        max_steps=steps if isinstance(steps := state.get("max_steps"), int) else None,
        best_metric=_number(state.get("best_metric")),
        best_checkpoint=base_name(state.get("best_model_checkpoint")) or None,
        weights=" and ".join(kinds) or "none",
        base_model=base if isinstance(base, str) else None,
        optimizer=bool(held.optimizer),
        scheduler=bool(held.scheduler) or held.by_deepspeed,
        scaler=bool(held.scaler),
        rng_ranks=len(held.ranks),
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
