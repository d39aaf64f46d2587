"""What keepstep knows of an Accelerator; it lives as long as that does."""

from dataclasses import dataclass, field
from typing import Any

from keepstep.dist.world import World, current_world
from keepstep.errors import ConfigError
from keepstep.integrations.accelerate.loader import ResumableLoader
from keepstep.integrations.accelerate.position import is_known

_NAME = "_keepstep"


@dataclass
class Attached:
    """Beside one Accelerator.

    Attributes:
        world: its ranks.
        loaders: those whose position is kept, by their number among the prepared ones.
        pending: where a checkpoint that was loaded was in their epochs, by the same number, until they are iterated.
        checkpoints: the `Checkpoints` that the functions hold, by folder.
    """

    world: World
    loaders: dict[int, ResumableLoader] = field(default_factory=dict)
    pending: dict[int, Any] = field(default_factory=dict)
    checkpoints: dict[str, Any] = field(default_factory=dict)


def attached(accelerator: Any) -> Attached:
    """The one of this Accelerator. The first call is collective."""
    found = getattr(accelerator, _NAME, None)
    if not isinstance(found, Attached):
        found = Attached(current_world())
        setattr(accelerator, _NAME, found)
    return found


def number_of(accelerator: Any, loader: Any) -> int:
    """Which of the prepared loaders this is.

    Raises:
        ConfigError: it is none of them, or one of a plugin or a TPU.
    """
    for number, prepared in enumerate(accelerator._dataloaders):
        if prepared is loader and is_known(loader):
            return number
    raise ConfigError(
        "the position of this loader cannot be kept: pass what accelerator.prepare(...) has returned, on CPU or GPU"
    )
