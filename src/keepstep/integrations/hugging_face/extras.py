"""State of a Trainer that its own checkpoints lack: what trainers keep between steps, and where the data's order is."""

import os
from pathlib import Path
from typing import Any

import torch

from keepstep.errors import DamagedCheckpointError, UnsupportedStateError
from keepstep.state.codec import decode, encode

_NAME = "keepstep_state_{}.pt"
REFERENCE = "keepstep_reference_model.safetensors"

# Attributes of trainers of TRL (and of some before it) that change from step to step. Values are plain, or trees with
# tensors: token counts, metrics between two logs, and the completions that GRPO goes on to train on.
_LOSS, _LOGGED = "_tr_loss", "_globalstep_last_logged"
_ATTRIBUTES = (
    "_total_train_tokens",
    "_metrics",
    "_stored_metrics",
    "_step",
    "_buffered_inputs",
    "_current_train_step_time",
)


def name_of(rank: int) -> str:
    """File name of a rank's part."""
    return _NAME.format(rank)


def save_extras(trainer: Any, folder: Path, rank: int, more: dict[str, Any], loss: torch.Tensor | None) -> None:
    """Write this rank's part, and on the main process a reference model that is trained along.

    Raises:
        UnsupportedStateError: an attribute holds what cannot be stored.
    """
    # The names are usual ones: those of a trainer that somebody wrote for himself may mean anything.
    is_known = any(one.__module__.startswith("trl.") for one in type(trainer).__mro__)
    names = [name for name in _ATTRIBUTES if is_known and name in vars(trainer)]
    held = {name: _plain(getattr(trainer, name)) for name in names}
    if loss is not None:
        held[_LOSS] = loss.detach().cpu().clone()
        held[_LOGGED] = trainer._globalstep_last_logged
    tensors: dict[str, torch.Tensor] = {}
    tree = encode({"attributes": held, **more}, "trainer", tensors)
    torch.save({"tree": tree, "tensors": tensors}, folder / name_of(rank))
    if rank == 0 and (reference := _moving_reference(trainer)) is not None:
        from safetensors.torch import save_model

        save_model(reference, os.fspath(folder / REFERENCE))


def read_extras(folder: Path, rank: int) -> dict[str, Any] | None:
    """This rank's part; None where the checkpoint has none (a plain Trainer wrote it, or on other ranks).

    Raises:
        DamagedCheckpointError: it cannot be read.
    """
    path = folder / name_of(rank)
    if not path.exists():
        return None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        tree: dict[str, Any] = decode(found["tree"], found["tensors"])
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError) as error:
        raise DamagedCheckpointError(f"{path} cannot be read: {error}") from error
    return tree


def apply_extras(trainer: Any, extras: dict[str, Any], folder: Path) -> None:
    """Put it back."""
    for name, value in extras["attributes"].items():
        if name in (_LOSS, _LOGGED):
            continue
        present = getattr(trainer, name, None)
        if isinstance(present, dict) and isinstance(value, dict):
            _update(present, value)
        else:
            setattr(trainer, name, _on_device(value, trainer.args.device))
    reference = _moving_reference(trainer)
    if reference is not None and (folder / REFERENCE).exists():
        from safetensors.torch import load_model

        load_model(reference, os.fspath(folder / REFERENCE))


def apply_loss(trainer: Any, extras: dict[str, Any]) -> torch.Tensor | None:
    """Put back what the loss has summed up since the last log, so that the next log is of the same steps.

    Returns:
        The sum, where the Trainer keeps it in a variable of its loop (transformers 4): to be added at the first step.
    """
    held = extras["attributes"].get(_LOSS)
    if not isinstance(held, torch.Tensor):
        return None
    trainer._globalstep_last_logged = extras["attributes"][_LOGGED]
    # The mean over this call's steps leaves out what was summed before it.
    trainer._total_loss_scalar -= float(held)
    present = getattr(trainer, _LOSS, None)
    if not isinstance(present, torch.Tensor):
        return held
    trainer._tr_loss = held.to(present.device)
    return None


def _moving_reference(trainer: Any) -> Any:
    """A reference model that is moved after the trained one (`sync_ref_model`); None where it stays as it is."""
    if not getattr(trainer.args, "sync_ref_model", False):
        return None
    reference = getattr(trainer, "ref_model", None)
    return None if reference is None else trainer.accelerator.unwrap_model(reference)


def _plain(value: Any) -> Any:
    """The same with plain dicts: what a `defaultdict` makes its values with cannot be stored, and is still there."""
    if isinstance(value, dict):
        return {name: _plain(held) for name, held in value.items()}
    return [_plain(held) for held in value] if type(value) is list else value


def _update(present: dict[Any, Any], value: dict[Any, Any]) -> None:
    """Fill a dict in place: it may be a `defaultdict` that others refer to."""
    for name, held in value.items():
        if isinstance(held, dict) and isinstance(present.get(name), dict):
            _update(present[name], held)
        else:
            present[name] = held


def _on_device(value: Any, device: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: _on_device(held, device) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_on_device(held, device) for held in value)
    return value


__all__ = ["REFERENCE", "UnsupportedStateError", "apply_extras", "apply_loss", "name_of", "read_extras", "save_extras"]
