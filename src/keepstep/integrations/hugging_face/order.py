"""The data of a Trainer as a function of seed and epoch, so that an epoch that is taken up in its middle is the same.

Random numbers that samplers, data sets and collators draw come from a stream of their own: it begins anew with each
epoch, and each sample has its own part of it. The random states that the model draws from are not touched by reading.
Which samples come in which order is left to the Trainer.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data import DataLoader, IterableDataset, Sampler, SequentialSampler

from keepstep.errors import ConfigError
from keepstep.integrations.hugging_face.seeded import (
    Epoch,
    SeededCollate,
    SeededDataset,
    WholeOrder,
    random_states,
    set_random_states,
)


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
        # Training begins, perhaps once more: after a batch that found no memory the Trainer starts over by itself.
        self._number, self._batches, self._has_begun, self._states = 0, 0, False, None
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
        models = random_states()
        if self._states is None:
            digest = xxhash.xxh3_128_digest(repr(("epoch", self._seed, self._number)).encode())
            random.seed(int.from_bytes(digest[:8], "little"))
            np.random.seed(int.from_bytes(digest[8:12], "little"))
            torch.default_generator.manual_seed(int.from_bytes(digest[8:16], "little") >> 1)
        else:
            set_random_states(self._states)
        was_reading, self.is_reading = self.is_reading, True
        try:
            yield
        finally:
            self.is_reading = was_reading
            self._states = random_states()
            set_random_states(models)

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


def _has_length(loader: Any) -> bool:
    try:
        return len(loader) is not None
    except (TypeError, NotImplementedError):
        return False
