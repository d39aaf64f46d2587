"""Accelerate's own calls, without what makes them unsafe."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

# Kept here: `enable` puts others in their place.
_CALLS: dict[str, Any] = {}


def own_calls() -> dict[str, Any]:
    """Accelerate's `save_state` and `load_state` as they were before `enable`."""
    from accelerate import Accelerator

    if not _CALLS:
        _CALLS.update(save_state=Accelerator.save_state, load_state=Accelerator.load_state)
    return _CALLS


def save_into(accelerator: Any, folder: Path, safe_serialization: bool, more: dict[str, Any]) -> None:
    """Let Accelerate write its files into this folder."""
    with _in_this_folder(accelerator):
        own_calls()["save_state"](accelerator, str(folder), safe_serialization=safe_serialization, **more)


def load_from(accelerator: Any, folder: Path, more: dict[str, Any]) -> None:
    """Let Accelerate load its files from this folder."""
    own_calls()["load_state"](accelerator, str(folder), **more)


def write_shared_files(accelerator: Any, folder: Path) -> None:
    """Write again, on the main process alone, what Accelerate lets every rank write to the same file at once."""
    for number, loader in enumerate(accelerator._dataloaders):
        if getattr(loader, "use_stateful_dataloader", False):
            torch.save(loader.state_dict(), folder / f"dl_state_dict{f'_{number}' if number else ''}.bin")
    if accelerator.scaler is not None:
        torch.save(accelerator.scaler.state_dict(), folder / "scaler.pt")


@contextmanager
def _in_this_folder(accelerator: Any) -> Iterator[None]:
    """With `automatic_checkpoint_naming` Accelerate takes another folder, and deletes old ones before it writes."""
    project = accelerator.project_configuration
    naming = project.automatic_checkpoint_naming
    project.automatic_checkpoint_naming = False
    try:
        yield
    finally:
        project.automatic_checkpoint_naming = naming
