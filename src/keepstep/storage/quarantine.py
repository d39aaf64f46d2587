"""Takes a damaged checkpoint out of the way and keeps it, with a report of what is wrong with it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keepstep.errors import CouldNotLookError
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.storage.local import make_folders, replace_text, sync_folder


def quarantine(
    folder: Path, step: int, attempt: int, report: Mapping[str, Any], naming: Naming = layout.NATIVE
) -> Path:
    """Move a checkpoint to `.keepstep/quarantine`. Nothing of it is deleted.

    Args:
        folder: the run's folder.
        step: which checkpoint.
        attempt: the attempt of the run that found the damage.
        report: what was found; written beside it, as JSON, before it is moved.
        naming: how checkpoints are called there.

    Returns:
        Where it lies now.

    Raises:
        OSError: it cannot be moved.
    """
    place = folder / layout.QUARANTINE
    make_folders(place)
    number = 0
    while os.path.lexists(target := place / layout.moved_name(step, attempt, number, naming)):
        number += 1
    replace_text(target.with_name(f"{target.name}.json"), json.dumps(report, indent=1) + "\n")
    (folder / naming.checkpoint_name(step)).rename(target)
    sync_folder(place)
    sync_folder(folder)
    return target


def quarantined_steps(folder: Path) -> list[int]:
    """Steps of the checkpoints that lie in a run's quarantine.

    Raises:
        CouldNotLookError: it cannot be read.
    """
    place = folder / layout.QUARANTINE
    try:
        names = [entry.name for entry in os.scandir(place) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CouldNotLookError(f"cannot look into {place}: {error}") from error
    return sorted(step for name in names if (step := layout.kept_step(name)) is not None)


def size_of(folder: Path) -> int:
    """Bytes of all that lies in a run's quarantine, and went out of its way otherwise."""
    total = 0
    for base in (layout.QUARANTINE, layout.SET_ASIDE):
        for path, _, files in os.walk(folder / base):
            total += sum(os.lstat(os.path.join(path, name)).st_size for name in files)
    return total
