"""Makes every Trainer resumable that is made from now on, for scripts that cannot be edited.

Lightning is imported by nobody but the script: until then only a hook waits for it, so that `sitecustomize` may call
this in any process.
"""

import logging
import sys
from collections.abc import Sequence
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from keepstep.errors import ConfigError

logger = logging.getLogger("keepstep")

_MODULES = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
_MARK = "_keepstep_enabled"


def enable() -> None:
    """Let each Trainer of this process be made resumable as it is made; a second call changes nothing.

    A Trainer that cannot be is left as it is, with a warning.
    """
    for name in _MODULES:
        if name in sys.modules:
            _patch(sys.modules[name])
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


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


class _Finder(MetaPathFinder):
    """Lets others find the module, and patches it when it has been run."""

    def __init__(self) -> None:
        self._asking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _MODULES or fullname in self._asking:
            return None
        self._asking.add(fullname)
        try:
            spec = find_spec(fullname)
        finally:
            self._asking.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Patching(spec.loader)
        return spec


class _Patching(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _patch(module)
