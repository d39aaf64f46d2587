"""Makes every Trainer resumable that is made from now on, for scripts that cannot be edited.

Lightning is imported by nobody but the script: until then only a hook waits for it, so that `sitecustomize` may call
this in any process.
"""

import logging
from functools import wraps
from types import ModuleType
from typing import Any

from keepstep.errors import ConfigError
from keepstep.integrations.importing import when_imported

logger = logging.getLogger("keepstep")

_MODULES = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
_MARK = "_keepstep_enabled"


def enable() -> None:
    """Let each Trainer of this process be made resumable as it is made; a second call changes nothing.

    A Trainer that cannot be is left as it is, with a warning.
    """
    for name in _MODULES:
        when_imported(name, _patch)


def _patch(module: ModuleType) -> None:
    kind: Any = getattr(module, "Trainer", None)
    if kind is None or getattr(kind, _MARK, False):
        return
    make = kind.__init__

    @wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        from keepstep.integrations.lightning.resumable import make_resumable

        try:
            make_resumable(self)
        except ConfigError as error:
            logger.warning("a Trainer is left as it is, its checkpoints unverified: %s", error)

    kind.__init__ = init
    setattr(kind, _MARK, True)
