"""Lightning under either of its names: `lightning.pytorch` or `pytorch_lightning`. Imported when it is first needed."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from keepstep.errors import ConfigError

NAMES = ("lightning.pytorch", "pytorch_lightning")


def package_of(trainer: Any) -> str:
    """Which of the two a Trainer is of.

    Raises:
        ConfigError: of neither.
    """
    for kind in type(trainer).__mro__:
        for name in NAMES:
            if kind.__name__ == "Trainer" and kind.__module__.startswith(f"{name}."):
                return name
    raise ConfigError(f"{type(trainer).__name__} is no Trainer of Lightning; give one of lightning.pytorch")


def present() -> str:
    """The one that is imported already, or else the one that is installed.

    Raises:
        ImportError: neither is.
    """
    for name in NAMES:
        if name in sys.modules:
            return name
    for name in NAMES:
        if find_spec(name.partition(".")[0]) is not None:
            return name
    raise ImportError("Lightning is not installed: pip install keepstep[lightning]")


def part(package: str, name: str) -> Any:
    """A module of Lightning's, such as `plugins.io`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        return import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name is not None and f"{package}.{name}".startswith(error.name):
            raise ImportError(f"{package} is not installed: pip install keepstep[lightning]") from error
        raise
