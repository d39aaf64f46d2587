"""The best checkpoint, which a Trainer names by its path: never by a temporary one, nor by one that is not there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keepstep.plan.layout import TRAINER


@contextmanager
def naming_no_best(state: Any) -> Iterator[None]:
    """While the body lets the Trainer save. It would look for the best one in the temporary folder, after a barrier at
    which a rank that has failed never arrives."""
    if not hasattr(state, "best_global_step"):
        yield
        return
    best, state.best_global_step = state.best_global_step, None
    try:
        yield
    finally:
        state.best_global_step = best


def name_best(state: Any, folder: Path, step: int) -> None:
    """Name it, where it is the one of `step`, which is about to be committed, or is there."""
    best = getattr(state, "best_global_step", None)
    path = folder / TRAINER.checkpoint_name(int(best or 0))
    if best and (best == step or path.is_dir()):
        state.best_model_checkpoint = str(path)


def named_step(state: Any) -> int | None:
    """The step of the one that is named."""
    path = state.best_model_checkpoint
    return TRAINER.step_of(Path(path).name) if path else None


def best_steps(state: Any) -> tuple[int, ...]:
    """Steps that retention leaves."""
    known = getattr(state, "best_global_step", None)
    return tuple({int(step) for step in (named_step(state), known) if step})
