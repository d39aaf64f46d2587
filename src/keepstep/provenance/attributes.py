"""What an object holds by name, and which of it says nothing about data."""

import concurrent.futures
import logging
import os
import random
import types
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from keepstep.provenance.secrets import names_a_secret

# Where an object works, and not what it works on.
_PLACES = frozenset(
    {
        *("rank", "world", "world_size", "num_replicas", "local_rank", "data_rank", "data_ranks", "dp_rank", "dp_size"),
        *("num_workers", "worker_id", "device", "epoch"),
    }
)
_CODE = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    types.CodeType,
    property,
    staticmethod,
    classmethod,
    logging.Logger,
    torch.Generator,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
    concurrent.futures.Executor,
    weakref.ref,
    os._Environ,
)
_SILENT_PACKAGES = frozenset({"_thread", "threading", "multiprocessing", "contextvars", "keepstep", "logging", "abc"})
# Those of this package that hold data.
_TELLING = "keepstep.data.files."
_LIBRARIES = frozenset({"builtins", "torch", "typing", "abc", "collections", "numpy", "datasets", "typing_extensions"})


def says_nothing(value: Any) -> bool:
    """Whether a value is code, a lock, a random generator, or a part of the job itself."""
    kind = type(value)
    is_silent = package_of(kind) in _SILENT_PACKAGES and not kind.__module__.startswith(_TELLING)
    return isinstance(value, _CODE) or kind is object or is_silent


def package_of(kind: type) -> str:
    """The top-level package of a class."""
    return kind.__module__.partition(".")[0]


def attributes_of(value: Any) -> dict[str, Any] | None:
    """What an object holds, by name in order, also at its class; None when that cannot be told.

    Left out: what says where it works, and what looks like the name of a secret.
    """
    found: dict[str, Any] = {}
    known = False
    for kind in reversed(type(value).__mro__):
        known |= bool(_slots(kind))
        found |= {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)}
        if package_of(kind) not in _LIBRARIES:
            found |= {name: held for name, held in vars(kind).items() if _is_data(name, held)}
    held = getattr(value, "__dict__", None)
    if held is None and not known:
        return None
    found |= dict(held) if isinstance(held, Mapping) else {}
    return {name: found[name] for name in sorted(found) if name not in _PLACES and not names_a_secret(name)}


def _is_data(name: str, held: Any) -> bool:
    is_special = name.startswith(("__", "_abc_")) or name in ("_is_protocol", "_parameters")
    return not is_special and not callable(held) and not hasattr(type(held), "__get__")


def _slots(kind: type) -> list[str]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    mangled = kind.__name__.lstrip("_")
    return [
        f"_{mangled}{name}" if name.startswith("__") and not name.endswith("__") else name
        for name in names
        if name not in ("__dict__", "__weakref__")
    ]
