"""Does something to a module as soon as somebody imports it: until then nobody waits for that import."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], object]


def when_imported(name: str, action: Action) -> None:
    """Call `action` with a module when it has been run, or now where it has. A later action replaces an earlier one.

    Args:
        name: of the module, in full.
        action: may import others; what it raises is raised by the import.
    """
    if name in sys.modules:
        action(sys.modules[name])
        return
    finder = next((one for one in sys.meta_path if isinstance(one, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.actions[name] = action


def forget(name: str) -> None:
    """Wait for this module no longer."""
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            finder.actions.pop(name, None)


class _Finder(MetaPathFinder):
    """Lets others find the module, and sees to it when it has been run."""

    def __init__(self) -> None:
        self.actions: dict[str, Action] = {}
        self._asking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.actions or fullname in self._asking:
            return None
        self._asking.add(fullname)
        try:
            spec = find_spec(fullname)
        finally:
            self._asking.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Acting(spec.loader, self.actions[fullname])
        return spec


class _Acting(Loader):
    def __init__(self, loader: Loader, action: Action) -> None:
        self._loader, self._action = loader, action

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._action(module)
