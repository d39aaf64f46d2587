"""Notes who seeds a global random state, or begins to read a data loader, while a run is observed."""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.random
from torch.utils.data import DataLoader

# Seeding by these is part of what they do: workers seed themselves, and keepstep puts back what it seeds.
_OWN = ("keepstep.", "torch.", "torchdata.")


class SeedWatch:
    """Watches the functions that seed Python's, NumPy's and torch's global states, from `start` on.

    Attributes:
        seen: "torch.manual_seed at train.py:31", one for each call.
        epoch_batches: the length of the plain data loader that was iterated last, None without one.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.epoch_batches: int | None = None
        self._started = False
        self._initial = 0
        self._watch(random, "seed", "random.seed")
        self._watch(np.random, "seed", "numpy.random.seed")
        self._watch(torch, "manual_seed", "torch.manual_seed")
        self._watch(torch.random, "manual_seed", "torch.manual_seed")
        self._watch(torch.cuda, "manual_seed_all", "torch.cuda.manual_seed_all")
        self._watch_loaders()

    def start(self) -> None:
        """From now on a call counts: the states have been restored."""
        self._started = True
        self._initial = torch.initial_seed()

    def places(self) -> tuple[str, ...]:
        """All calls so far, also one of a `manual_seed` that was imported by name before it was watched."""
        hidden = self._started and not self.seen and torch.initial_seed() != self._initial
        return ("torch.manual_seed",) if hidden else tuple(self.seen)

    def _watch(self, module: Any, attribute: str, name: str) -> None:
        inner: Callable[..., Any] = getattr(module, attribute)

        def watched(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1)
            if self._started and not caller.f_globals.get("__name__", "").startswith(_OWN):
                self.seen.append(f"{name} at {Path(caller.f_code.co_filename).name}:{caller.f_lineno}")
            return inner(*args, **kwargs)

        setattr(module, attribute, watched)

    def _watch_loaders(self) -> None:
        inner = DataLoader.__iter__

        def watched(loader: Any) -> Any:
            self.epoch_batches = length_of(loader)
            return inner(loader)

        DataLoader.__iter__ = watched  # type: ignore[method-assign]


def length_of(loader: Any) -> int | None:
    """Batches in an epoch; None for a loader without a length, or over data without one."""
    try:
        return len(loader)
    except TypeError:
        return None
