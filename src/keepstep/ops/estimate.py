"""What `keepstep estimate` reads: the configuration of a model, a checkpoint that is there, the speed of a disk."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from keepstep.errors import CheckpointNotFoundError, ConfigError, CouldNotLookError
from keepstep.ops.doctor_scratch import scratch_folder
from keepstep.ops.doctor_speed import measure_speed
from keepstep.ops.found import survey_run
from keepstep.ops.show import show
from keepstep.plan import layout
from keepstep.plan.estimate import Estimate, Part, Rates
from keepstep.storage.local import free_bytes
from keepstep.storage.mount import existing

MODEL_CONFIG = "config.json"
_AMOUNT = 256 * 2**20
_OF_RANK = re.compile(r"__(\d+)[_.].*")


def model_config(path: Path) -> dict[str, Any] | None:
    """The fields of a `config.json`, given the file or its folder; None where the path is neither.

    Raises:
        ConfigError: it cannot be read.
    """
    file = path / MODEL_CONFIG if path.is_dir() else path
    if file.suffix != ".json" or not file.is_file():
        return None
    try:
        fields = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: cannot be read as JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{file}: must hold the fields of a model's configuration")
    return fields


def is_checkpoint(path: Path) -> bool:
    """Whether a path has the name of a checkpoint."""
    return path.is_dir() and layout.any_step_of(path.resolve().name) is not None


def has_checkpoint(path: Path) -> bool:
    """Whether a path is a checkpoint, or the folder of a run with a complete one.

    Raises:
        CouldNotLookError: the folder cannot be read.
    """
    return is_checkpoint(path) or (path.is_dir() and bool(survey_run(path).complete))


def estimate_checkpoint(path: Path) -> Estimate:
    """The size of a checkpoint, or of the newest complete one of a run's folder, as its manifest has it.

    Raises:
        CheckpointNotFoundError: there is none.
    """
    notes: tuple[str, ...] = ()
    if not is_checkpoint(path):
        complete = survey_run(path).complete if path.is_dir() else ()
        if not complete:
            raise CheckpointNotFoundError(
                f"{path}: no complete checkpoint, no config.json of a model and no job's YAML file; give one of them, "
                "or --parameters"
            )
        if (config := path / MODEL_CONFIG).is_file():
            notes = (f"of the newest checkpoint; for the model that {config} describes give that file",)
        path = complete[-1].path
    shown = show(path)
    if shown.size is None:
        raise CheckpointNotFoundError(f"{path}: {shown.problem or 'it has no manifest'}")
    rest = shown.size - sum(part.size for part in shown.parts)
    parts = [Part(part.component, part.size, None) for part in shown.parts] + [Part("other", max(0, rest), None)]
    ranks = Counter[str]()
    for name, size in shown.files.items():
        # What belongs to no rank is written by the main process.
        ranks[match[1] if (match := _OF_RANK.fullmatch(name)) else "0"] += size
    rank_size = max(ranks.values(), default=shown.size)
    numbers, world = shown.parameters or None, shown.world_size or 1
    return Estimate(str(path), True, numbers, None, tuple(parts), shown.size, world, rank_size, notes=notes)


def measure_rates(folder: Path) -> tuple[Rates, int | None]:
    """How fast one process writes and reads in a folder, or where it would be made, and how much is free there (bytes).

    Raises:
        CouldNotLookError: it cannot be written, or has no room to measure in.
    """
    place = existing(folder)
    try:
        free = free_bytes(place)
        if free is not None and free < 2 * _AMOUNT:
            raise CouldNotLookError(f"{place}: {free:,} bytes are free, too few to measure its speed in")
        with scratch_folder(place) as scratch:
            speed = measure_speed(scratch, _AMOUNT)
    except OSError as error:
        if isinstance(error, CouldNotLookError):
            raise
        raise CouldNotLookError(f"the speed of {place} cannot be measured: {error}") from error
    if speed.differs:
        raise CouldNotLookError(f"{place}: other bytes were read than were written; keepstep doctor {place} says more")
    return Rates(speed.write_rate, speed.read_rate), free
