"""One call each: what a loop needs, with the run's folder held in between."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keepstep.integrations.accelerate.attached import attached, number_of
from keepstep.integrations.accelerate.checkpoints import Checkpoints
from keepstep.integrations.accelerate.loader import ResumableLoader
from keepstep.provenance.record import RunFacts


def load_state(
    accelerator: Any,
    folder: str | Path,
    step: int | None = None,
    *,
    on_damage: str = "fall_back",
    guards: Mapping[str, str] | None = None,
    accept: Sequence[str] = (),
    facts: RunFacts | None = None,
    mirror: Any = (),
) -> int:
    """Load the newest good checkpoint of a run, or the one of `step`, into all that was prepared and registered.

    Arguments as of `Checkpoints`. Returns completed steps, 0 when there surely is no checkpoint; raises as
    `Checkpoints.load`.
    """
    close(accelerator, folder)
    found = Checkpoints(
        accelerator, folder, on_damage=on_damage, guards=guards, accept=accept, facts=facts, mirror=mirror
    )
    start = found.load(step)
    attached(accelerator).checkpoints[_name(folder)] = found
    return start


def save_state(
    accelerator: Any,
    folder: str | Path,
    step: int,
    *,
    num_to_keep: int | None = None,
    safe_serialization: bool = True,
    **more: Any,
) -> Path:
    """Save `checkpoint-<step>`: written beside, digested, synced and then named, so that it is whole or not there.

    Arguments as of `Checkpoints` and `Checkpoints.save`. Returns the checkpoint's folder; raises as `Checkpoints.save`.
    """
    held = attached(accelerator).checkpoints
    checkpoints = held.get(_name(folder))
    if checkpoints is None:
        checkpoints = held[_name(folder)] = Checkpoints(accelerator, folder, num_to_keep=num_to_keep)
    checkpoints.num_to_keep = num_to_keep
    path: Path = checkpoints.save(step, safe_serialization=safe_serialization, **more)
    return path


def resumable(accelerator: Any, loader: Any) -> ResumableLoader:
    """A prepared loader whose position is in every checkpoint; use it in place of the loader.

    Args:
        accelerator: the one that has prepared it.
        loader: what `accelerator.prepare` has returned.

    Raises:
        ConfigError: the loader was not prepared.
    """
    number, beside = number_of(accelerator, loader), attached(accelerator)
    found = beside.loaders.setdefault(number, ResumableLoader(loader))
    if number in beside.pending:
        found.stand_at(beside.pending.pop(number))
    return found


def close(accelerator: Any, folder: str | Path | None = None) -> None:
    """Let other jobs have the run's folder, or all of them. The end of the process does it too."""
    held = attached(accelerator).checkpoints
    for name in [_name(folder)] if folder is not None else list(held):
        if name in held:
            held.pop(name).close()


def _name(folder: str | Path) -> str:
    return os.path.abspath(folder)
