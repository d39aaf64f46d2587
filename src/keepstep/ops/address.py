"""What a side of a comparison means on the command line."""

from pathlib import Path

from keepstep.errors import CheckpointNotFoundError
from keepstep.ops.found import is_trainers
from keepstep.ops.place import place_of
from keepstep.ops.safetensors_source import is_export, safetensors_side
from keepstep.ops.tensor_source import Side, checkpoint_side
from keepstep.ops.trainer_source import trainer_side
from keepstep.plan import layout


def open_side(address: str) -> Side:
    """Look into a `save-<step>` or `checkpoint-<step>` folder, a safetensors file, or a folder with such files; or a
    checkpoint on a mirror.

    Raises:
        ConfigError: it is an address that does not work, or of a checkpoint that cannot be compared where it lies.
        CheckpointNotFoundError: it is none of these.
        DamagedCheckpointError, CouldNotLookError: see `checkpoint_side` and `safetensors_side`.
    """
    place = place_of(address)
    if isinstance(place, Path):
        return _local_side(place)
    from keepstep.ops.mirror.side import stored_side  # here, so that folders do not wait for the means to reach stores

    return stored_side(place)


def _local_side(path: Path) -> Side:
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
