"""The ways in. Neither imports transformers: the script does that, and until then only a hook waits for it."""

import sys
from types import ModuleType
from typing import Any

from keepstep.errors import ConfigError
from keepstep.integrations.hugging_face.options import Options
from keepstep.integrations.importing import forget, when_imported

_TRAINER = "transformers.trainer"


def make_resumable(trainer: Any, **options: Any) -> Any:
    """Let this trainer save, verify and resume through keepstep. Returns the trainer.

    Args:
        trainer: a `transformers.Trainer` or a subclass of it.
        **options: see `Options`.

    Raises:
        ConfigError: an option does not work, or the trainer is set up in a way that cannot be resumed.
    """
    try:
        from keepstep.integrations.hugging_face.hooks import attach
    except ImportError as error:
        raise ConfigError(f"the Trainer cannot be imported ({error}): pip install 'keepstep[hf]'") from error
    return attach(trainer, Options(**options))


def enable(**options: Any) -> None:
    """Let every Trainer of this process save, verify and resume through keepstep: for scripts that cannot be edited.

    Args:
        **options: see `Options`; those of `make_resumable` go before them.
    """
    chosen = Options(**options)

    def install(module: ModuleType) -> None:
        from keepstep.integrations.hugging_face.hooks import enable_all

        enable_all(chosen)

    when_imported(_TRAINER, install)


def disable() -> None:
    """Take `enable` back, and all hooks. Trainers that run are not touched."""
    forget(_TRAINER)
    if _TRAINER in sys.modules:
        from keepstep.integrations.hugging_face.hooks import uninstall

        uninstall()
