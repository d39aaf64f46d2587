"""Samples, batches and orders whose random numbers depend on seed, epoch and index only."""

import contextlib
import random
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
import xxhash
from torch.utils.data import Sampler

from keepstep.data.randomness import seed_for_collate, seed_for_sample


class Reader(Protocol):
    """Who reads: tells whether it does right now, and is told when the order of an epoch is about to be drawn."""

    is_reading: bool

    def sampler_begins(self, generator: Any) -> None: ...


class Epoch:
    """The number of the epoch, seen by worker processes that live on into the next as well."""

    def __init__(self, *, is_shared: bool) -> None:
        self._cell = torch.zeros(1, dtype=torch.int64)
        if is_shared:
            self._cell.share_memory_()

    @property
    def number(self) -> int:
        return int(self._cell[0])

    @number.setter
    def number(self, value: int) -> None:
        self._cell[0] = value


class SeededDataset:
    """A map-style data set whose samples draw random numbers that depend on seed, epoch and index only."""

    def __init__(self, dataset: Any, seed: int, epoch: Epoch, order: Reader) -> None:
        self.dataset, self._seed, self._epoch, self._order = dataset, seed, epoch, order
        self.batch_begins = 0
        if hasattr(dataset, "__getitems__"):
            self.__getitems__ = self._fetch_together
        else:
            self.__getitems__ = self._fetch_each

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        with self._apart():
            seed_for_sample(self._seed, self._epoch.number, _number_of(index))
            return self.dataset[index]

    def _apart(self) -> contextlib.AbstractContextManager[None]:
        """Somebody else may read a sample, a callback say: what the model draws from stays as it is then too."""
        is_ours = self._order is None or self._order.is_reading
        return contextlib.nullcontext() if is_ours else untouched_random_states()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getstate__(self) -> dict[str, Any]:
        # In a worker process all that reads is the loader.
        return {**{name: value for name, value in vars(self).items() if name != "__getitems__"}, "_order": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__getitems__ = self._fetch_together if hasattr(self.dataset, "__getitems__") else self._fetch_each

    def _fetch_together(self, indices: list[Any]) -> Any:
        self.batch_begins = _number_of(indices[0]) if indices else 0
        with self._apart():
            seed_for_sample(self._seed, self._epoch.number, self.batch_begins)
            return self.dataset.__getitems__(indices)

    def _fetch_each(self, indices: list[Any]) -> list[Any]:
        self.batch_begins = _number_of(indices[0]) if indices else 0
        return [self[index] for index in indices]

    def seed_collate(self) -> None:
        """Seed what collating the batch that was fetched last draws."""
        seed_for_collate(self._seed, self._epoch.number, self.batch_begins)


class SeededCollate:
    """A collator that draws random numbers which depend on seed, epoch and batch only."""

    def __init__(self, collate: Any, dataset: SeededDataset) -> None:
        self._collate, self._dataset = collate, dataset

    def __call__(self, features: Any) -> Any:
        with self._dataset._apart():
            self._dataset.seed_collate()
            return self._collate(features)


class WholeOrder(Sampler[Any]):
    """A sampler whose order for an epoch is drawn at once when the epoch begins."""

    def __init__(self, sampler: Any, order: Reader) -> None:
        self.sampler, self._order = sampler, order

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "sampler" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def __iter__(self) -> Iterator[Any]:
        self._order.sampler_begins(getattr(self.sampler, "generator", None))
        drawn = list(islice(self.sampler, len(self.sampler)))
        yield from array("q", drawn) if all(type(index) is int for index in drawn) else drawn


def _number_of(index: Any) -> int:
    """A number for an index of any kind."""
    try:
        return int(index)
    except (TypeError, ValueError):
        return int(xxhash.xxh3_64_intdigest(repr(index).encode()) >> 1)


@contextlib.contextmanager
def untouched_random_states() -> Iterator[None]:
    """What the body draws is drawn by nobody else."""
    states = random_states()
    try:
        yield
    finally:
        set_random_states(states)


def random_states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_random_states(states: tuple[Any, ...]) -> None:
    python, numpy, own = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(own)
