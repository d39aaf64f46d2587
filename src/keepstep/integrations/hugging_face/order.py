"""The data of a Trainer as a function of seed and epoch, so that an epoch that is taken up in its middle is the same.

Random numbers that samplers, data sets and collators draw come from a stream of their own: it begins anew with each
epoch, and each sample has its own part of it. The random states that the model draws from are not touched by reading.
Which samples come in which order is left to the Trainer.
"""

import contextlib
import random
from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import DataLoader, IterableDataset, Sampler, SequentialSampler

from keepstep.data.randomness import seed_for_collate, seed_for_sample
from keepstep.errors import ConfigError


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

    def __init__(self, dataset: Any, seed: int, epoch: Epoch, order: "DataOrder") -> None:
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

    def __init__(self, sampler: Any, order: "DataOrder") -> None:
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


class DataOrder:
    """The random numbers behind a training data loader.

    Args:
        seed: of the run.

    Attributes:
        generator_at_start: state of the sampler's own generator when the epoch began; None without one.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: tuple[Any, ...] | None = None
        self._epoch: Epoch | None = None
        self._generator: torch.Generator | None = None
        self._is_endless = False
        self._undo: list[Callable[[], object]] = []
        self.is_reading = False
        self._number, self._batches, self._has_begun = 0, 0, False
        self._to_restore: torch.Tensor | None = None
        self.generator_at_start: torch.Tensor | None = None

    def take_over(self, loader: Any) -> Any:
        """Let this loader draw from here. Returns it.

        Raises:
            ConfigError: it holds a stream in workers that live on into the next epoch.
        """
        base = getattr(loader, "base_dataloader", loader)
        loader.keepstep_order = self
        has_workers = getattr(base, "num_workers", 0) > 0
        is_persistent = has_workers and bool(getattr(base, "persistent_workers", False))
        self._epoch = Epoch(is_shared=is_persistent)
        dataset = getattr(base, "dataset", None)
        if isinstance(dataset, IterableDataset):
            if is_persistent:
                raise ConfigError(
                    "dataloader_persistent_workers with an IterableDataset cannot be resumed exactly: what its workers "
                    "draw goes on from epoch to epoch. Set dataloader_persistent_workers=False"
                )
            # To the Trainer all of its passes are one epoch, whose length is the number of steps.
            self._is_endless = not _has_length(loader)
            return self._take_iteration_over(loader)
        if dataset is None or isinstance(dataset, SeededDataset):
            return loader
        collate, holder = base.collate_fn, _holder_of_sampler(base)
        seeded = SeededDataset(dataset, self._seed, self._epoch, self)
        # A DataLoader forbids to change these once it is made, since it may have workers; none has begun here.
        object.__setattr__(base, "dataset", seeded)
        base.collate_fn = SeededCollate(collate, seeded)
        self._undo += [
            lambda: object.__setattr__(base, "dataset", dataset),
            lambda: setattr(base, "collate_fn", collate),
        ]
        if holder is not None:
            sampler = holder.sampler
            holder.sampler = WholeOrder(sampler, self)
            self._undo.append(lambda: setattr(holder, "sampler", sampler))
        return self._take_iteration_over(loader)

    def _take_iteration_over(self, loader: Any) -> Any:
        """Loaders of accelerate draw from the first batch on; one of torch when it is asked for an iterator."""
        kind = type(loader)
        if kind.__module__.startswith("torch.") and isinstance(loader, DataLoader):
            order = self

            def begin(own: Any) -> Any:
                with order.reading():
                    return kind.__iter__(own)

            loader.__class__ = type(kind.__name__, (kind,), {"__iter__": begin})
            self._undo.append(lambda: setattr(loader, "__class__", kind))
        return loader

    def give_back(self) -> None:
        """Leave the loader as it was found: it may be somebody's own."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def epoch_begins(self, number: int) -> None:
        """The next batch that is asked for is the first, or the first after skipped ones, of this epoch."""
        self._states = None
        if self._has_begun:
            number = self._number + 1
            self._batches = 0
        elif self._is_endless:
            number = self._number
        self._has_begun = True
        if self._epoch is not None:
            self._epoch.number = number
        self._number = number

    def has_read(self, batches: int) -> None:
        """So many more batches of this pass were read."""
        self._batches += batches

    def to_skip(self, batches: int) -> int:
        """How many batches are skipped where the Trainer means so many: of a stream, those of the pass it was in."""
        return self._batches if self._is_endless else batches

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """The body reads batches: it draws from the data's stream, and leaves what the model draws from as it is."""
        models = _random_states()
        if self._states is None:
            digest = xxhash.xxh3_128_digest(repr(("epoch", self._seed, self._number)).encode())
            random.seed(int.from_bytes(digest[:8], "little"))
            np.random.seed(int.from_bytes(digest[8:12], "little"))
            torch.default_generator.manual_seed(int.from_bytes(digest[8:16], "little") >> 1)
        else:
            _set_random_states(self._states)
        was_reading, self.is_reading = self.is_reading, True
        try:
            yield
        finally:
            self.is_reading = was_reading
            self._states = _random_states()
            _set_random_states(models)

    def sampler_begins(self, generator: Any) -> None:
        """A sampler is about to draw the order of an epoch, perhaps from a generator of its own."""
        if isinstance(generator, torch.Generator):
            self._generator = generator
            if self._to_restore is not None:
                generator.set_state(self._to_restore)
                self._to_restore = None
            self.generator_at_start = generator.get_state()

    def take_over_skipped(self, loader: Any) -> None:
        """A loader that leaves out what was done of an epoch is of that epoch; accelerate before 1.13 forgets that."""
        if hasattr(loader, "iteration"):
            loader.iteration = self._number

    def state(self) -> dict[str, Any]:
        """What a resume needs: of a sampler with a generator of its own, its states; of a stream, the place in it."""
        state: dict[str, Any] = {"pass": self._number, "batches": self._batches} if self._is_endless else {}
        if self._generator is not None:
            state |= {"at_start": self.generator_at_start, "now": self._generator.get_state()}
        return state

    def restore(self, state: dict[str, Any], *, is_mid_epoch: bool) -> None:
        """Take such a state over; the next epoch that begins draws from it."""
        self._to_restore = state.get("at_start" if is_mid_epoch else "now")
        if self._is_endless:
            self._number, self._batches = int(state.get("pass", 0)), int(state.get("batches", 0))


def _holder_of_sampler(loader: Any) -> Any:
    """The batch sampler in a loader whose order of samples is drawn by another sampler, and not by seed and epoch."""
    found = getattr(loader, "batch_sampler", None)
    while found is not None and not isinstance(getattr(found, "sampler", None), Sampler):
        found = getattr(found, "batch_sampler", None)
    if found is None or isinstance(found.sampler, SequentialSampler | WholeOrder):
        return None
    is_seeded = type(found.sampler).__name__ == "SeedableRandomSampler"
    # Somebody's own sampler may look at the training as it goes, so it is asked for one index after the other.
    is_known = type(found.sampler).__module__.split(".")[0] in ("torch", "transformers", "trl", "accelerate")
    return found if is_known and not is_seeded and hasattr(found.sampler, "__len__") else None


def _number_of(index: Any) -> int:
    """A number for an index of any kind."""
    try:
        return int(index)
    except (TypeError, ValueError):
        return int(xxhash.xxh3_64_intdigest(repr(index).encode()) >> 1)


def _has_length(loader: Any) -> bool:
    try:
        return len(loader) is not None
    except (TypeError, NotImplementedError):
        return False


@contextlib.contextmanager
def untouched_random_states() -> Iterator[None]:
    """What the body draws is drawn by nobody else."""
    states = _random_states()
    try:
        yield
    finally:
        _set_random_states(states)


def _random_states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_random_states(states: tuple[Any, ...]) -> None:
    python, numpy, own = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(own)
