"""For scripts that cannot be edited: Accelerate's own calls, made safe where they name `.../checkpoint-<step>`."""

import functools
import logging
from pathlib import Path
from typing import Any

from keepstep.errors import ConfigError
from keepstep.integrations.accelerate.attached import attached
from keepstep.integrations.accelerate.bare import own_calls
from keepstep.integrations.accelerate.checkpoints import Checkpoints
from keepstep.plan.layout import MANIFEST, TRAINER

logger = logging.getLogger("keepstep")


def enable() -> None:
    """Let `Accelerator.save_state(".../checkpoint-<step>")` and `load_state` of it do what `Checkpoints` does.

    The script goes on choosing what it loads, so nothing falls back and nothing is moved: a damaged folder is an error.
    A folder of another name, and one that keepstep has not saved, are left to Accelerate, with a warning. Under
    `automatic_checkpoint_naming` a save raises ConfigError, since Accelerate deletes before it writes there.
    """
    from accelerate import Accelerator

    own = own_calls()

    @functools.wraps(own["save_state"])
    def save_state(
        self: Any, output_dir: str | None = None, safe_serialization: bool = True, **more: Any
    ) -> str | Path:
        if self.project_configuration.automatic_checkpoint_naming:
            raise ConfigError(
                "automatic_checkpoint_naming deletes old checkpoints before the new one is written: turn it off, and "
                "call save_state with .../checkpoint-<step>"
            )
        path = Path(output_dir or "")
        if output_dir is None or TRAINER.step_of(path.name) is None:
            _warn(self, f"{output_dir} is saved by Accelerate alone, since it is not called checkpoint-<step>")
            saved: str = own["save_state"](self, output_dir, safe_serialization=safe_serialization, **more)
            return saved
        step = TRAINER.step_of(path.name) or 0
        return _checkpoints(self, path.parent).save(step, safe_serialization=safe_serialization, **more)

    @functools.wraps(own["load_state"])
    def load_state(self: Any, input_dir: str | None = None, load_kwargs: Any = None, **more: Any) -> None:
        path = Path(input_dir or "").expanduser()
        step = TRAINER.step_of(path.name) if input_dir is not None else None
        if step is None or not (path / MANIFEST).exists():
            _warn(self, f"{input_dir} is loaded by Accelerate alone: keepstep has not saved it")
            own["load_state"](self, input_dir, load_kwargs, **more)
            return
        _checkpoints(self, path.parent).load(step, load_kwargs=load_kwargs, **more)

    Accelerator.save_state, Accelerator.load_state = save_state, load_state


def disable() -> None:
    """Put Accelerate's own calls back."""
    from accelerate import Accelerator

    own = own_calls()
    Accelerator.save_state, Accelerator.load_state = own["save_state"], own["load_state"]


def _checkpoints(accelerator: Any, folder: Path) -> Checkpoints:
    held = attached(accelerator).checkpoints
    name = str(folder.absolute())
    if name not in held:
        held[name] = Checkpoints(accelerator, folder, on_damage="stop")
    found: Checkpoints = held[name]
    return found


def _warn(accelerator: Any, text: str) -> None:
    if accelerator.is_main_process:
        logger.warning(text)
