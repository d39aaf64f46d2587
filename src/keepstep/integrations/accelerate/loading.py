"""Loads a checkpoint into what an Accelerator has prepared; nothing changes before all files are there and readable."""

from pathlib import Path
from typing import Any

from keepstep.errors import StateMismatchError
from keepstep.integrations.accelerate import loader_states, random_states
from keepstep.integrations.accelerate.attached import Attached
from keepstep.integrations.accelerate.bare import load_from
from keepstep.integrations.accelerate.files import missing_files, needed_files
from keepstep.plan.layout import TRAINER
from keepstep.storage.survey import inspect


class Prepared:
    """A checkpoint that was found to be whole, before it is loaded.

    Raises:
        StateMismatchError: it lacks a file that is needed here, by name, or does not fit.
    """

    def __init__(self, accelerator: Any, beside: Attached, path: Path) -> None:
        self._accelerator, self._beside, self._path = accelerator, beside, path
        manifest = inspect(path, TRAINER.step_of(path.name) or 0).manifest
        needed = needed_files(accelerator, beside.world.size)
        if missing := missing_files(needed, manifest.files if manifest is not None else ()):
            raise StateMismatchError(
                f"{path} lacks {', '.join(missing)}: prepare and register what the run that saved it did, on as many "
                "ranks. Nothing was loaded"
            )
        rank = beside.world.rank
        self._random = random_states.read_random_states(path / random_states.file_name(rank))
        self._loaders = loader_states.read_loaders(accelerator, path / loader_states.file_name(rank))

    def load(self, more: dict[str, Any]) -> None:
        """Load it. Random states come last."""
        load_from(self._accelerator, self._path, more)
        loader_states.set_loaders(self._accelerator, self._beside, self._loaders)
        # Accelerate takes its step from the same file, and hides when it cannot.
        self._accelerator.step = self._random["step"]
        random_states.set_random_states(self._random)
