"""One file for each rank, beside Accelerate's: where all its prepared loaders are."""

import logging
from pathlib import Path
from typing import Any

import torch

from keepstep.errors import StateMismatchError
from keepstep.integrations.accelerate.attached import Attached
from keepstep.integrations.accelerate.position import Begun, draws_of, is_known, set_draws, set_epoch
from keepstep.state.codec import decode, encode

logger = logging.getLogger("keepstep")


def file_name(rank: int) -> str:
    """As Accelerate calls its own of a rank."""
    return f"keepstep_loaders_{rank}.bin"


def write_loaders(accelerator: Any, beside: Attached, folder: Path, rank: int) -> None:
    """Write them. Raises OSError when that fails."""
    _warn_of_lost_positions(accelerator, beside)
    states: list[dict[str, Any]] = []
    for number, loader in enumerate(accelerator._dataloaders):
        if not is_known(loader):
            states.append({"epoch": None, "stateful": None})
            continue
        tracked = beside.loaders.get(number)
        begun = tracked.note() if tracked is not None else beside.pending.get(number)
        states.append(
            {
                "epoch": loader.iteration,
                "draws": draws_of(loader),
                "begun": None if begun is None else begun.to_tree(),
                # Accelerate lets all ranks write theirs to one file.
                "stateful": loader.state_dict() if _is_stateful(loader) else None,
            }
        )
    own = [state.pop("stateful") for state in states]
    torch.save({"loaders": encode(states, "loaders", {}), "stateful": own}, folder / file_name(rank))


def read_loaders(accelerator: Any, path: Path) -> tuple[list[dict[str, Any]], list[Any]]:
    """Read a rank's file and compare it with the prepared loaders; nothing is changed.

    Raises:
        StateMismatchError: another number of loaders is prepared now.
    """
    from accelerate.utils import load

    content = load(path)
    states, own = decode(content["loaders"], {}), content["stateful"]
    if len(states) != len(accelerator._dataloaders):
        raise StateMismatchError(
            f"{path} holds the positions of {len(states)} loaders, and {len(accelerator._dataloaders)} are prepared "
            "now: prepare the same loaders in the same order as the run that saved it"
        )
    return states, own


def set_loaders(accelerator: Any, beside: Attached, found: tuple[list[dict[str, Any]], list[Any]]) -> None:
    """Let all prepared loaders stand where they were. Draws nothing."""
    beside.pending.clear()
    for number, (loader, state, own) in enumerate(zip(accelerator._dataloaders, *found, strict=True)):
        if state["epoch"] is None or not is_known(loader):
            continue
        begun = None if state["begun"] is None else Begun(**state["begun"])
        set_draws(loader, state["draws"])
        set_epoch(loader, state["epoch"])
        if own is not None and _is_stateful(loader):
            loader.load_state_dict(own)
        if number in beside.loaders:
            beside.loaders[number].stand_at(begun)
        elif begun is not None:
            beside.pending[number] = begun


def _is_stateful(loader: Any) -> bool:
    return bool(getattr(loader, "use_stateful_dataloader", False))


_warned: set[int] = set()


def _warn_of_lost_positions(accelerator: Any, beside: Attached) -> None:
    """Say it when the epoch that the loop is in would begin anew after a resume."""
    for loader in accelerator.gradient_state.dataloader_references:
        is_known = any(one.is_iterating(loader) for one in beside.loaders.values())
        if loader is None or is_known or loader.end_of_dataloader or id(loader) in _warned:
            continue
        _warned.add(id(loader))
        if accelerator.is_main_process:
            logger.warning(
                "a save in the middle of an epoch of a loader whose position is not kept: a resumed run begins that "
                "epoch anew. Iterate over keepstep's resumable(accelerator, loader), or save after whole epochs"
            )
