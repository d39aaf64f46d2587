"""What an address on the command line means. Addresses of mirrors come in here."""

from pathlib import Path

from keepstep.errors import CheckpointNotFoundError, ConfigError
from keepstep.ops.found import is_trainers
from keepstep.ops.safetensors_source import is_export, safetensors_side
from keepstep.ops.tensor_source import Side, checkpoint_side
from keepstep.ops.trainer_source import trainer_side
from keepstep.plan import layout


def open_side(address: str) -> Side:
    """Look into a `save-<step>` or `checkpoint-<step>` folder, a safetensors file, or a folder with such files.

    Raises:
        ConfigError: it is an address of a kind that is not known yet.
        CheckpointNotFoundError: it is none of these.
        DamagedCheckpointError, CouldNotLookError: see `checkpoint_side` and `safetensors_side`.
    """
    if "://" in address:
        raise ConfigError(f"{address}: only folders and files of this machine can be compared; copy it to one first")
    path = Path(address)
    if layout.step_of(path.resolve().name) is not None and path.is_dir():
        return checkpoint_side(path)
    # One that a Trainer wrote without keepstep is a folder of safetensors files like others.
    is_adopted = is_trainers(path) and (path / layout.MANIFEST).exists()
    if is_adopted or (is_trainers(path) and path.is_dir() and not is_export(path)):
        return trainer_side(path)
    if is_export(path):
        return safetensors_side(path)
    raise CheckpointNotFoundError(
        f"{path}: no checkpoint and no export; give a save-<step> folder (or a Trainer's checkpoint-<step>), a "
        ".safetensors file or a folder of them"
    )
