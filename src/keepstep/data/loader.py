"""A loader of global batches whose position is one integer: samples consumed by all ranks together."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from keepstep.data.randomness import seed_for_collate, seed_for_sample
from keepstep.data.workers import ignore_stop_signals, next_of
from keepstep.errors import StateMismatchError
from keepstep.plan.batching import Division, micro_batches
from keepstep.plan.by_length import micro_batches_by_length
from keepstep.plan.order import SampleOrder
from keepstep.state.rng import untouched_random_states

logger = logging.getLogger("keepstep")

# What gives a position its meaning, and the field of run.json under which a change of it can be accepted.
_GUARDED_BY = {"length": "dataset_sha256", "seed": "seed", "shuffle": "config.trainer.data.shuffle"}

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass of one rank takes.

    Attributes:
        data: the collated samples.
        indices: their indices in the data set.
        samples: how many of them count; 0 for a pass that only keeps the ranks together.
        places: their places in the global batch, from 0. By these results get into the order of the input.
        is_last: of this rank's in the global batch.
        is_whole: whether all could be read; else there is no data.
    """

    data: Any
    indices: tuple[int, ...]
    samples: int
    places: tuple[int, ...] = ()
    is_last: bool = True
    is_whole: bool = True


# Epoch and index of a sample, and its place in the global batch.
_Sample = tuple[int, int, int]
_Parts = list[tuple[list[_Sample], int]]


class _Schedule:
    """Yields (indices, real samples) of this rank's micro-batches, from a position on."""

    def __init__(
        self, order: SampleOrder, divide: Callable[[list[_Sample]], _Parts], size: int, begin: int, end: int | None
    ) -> None:
        self._order, self._divide, self._size = order, divide, size
        self._begin, self._end = begin, end

    def __iter__(self) -> Iterator[list["_Place"]]:
        position = self._begin
        size = self._size
        while self._end is None or position < self._end:
            count = size if self._end is None else min(size, self._end - position)
            indices = self._order.slice(position, count)
            batch = [((position + i) // self._order.length, index, i) for i, index in enumerate(indices)]
            parts = self._divide(batch)
            for number, (part, samples) in enumerate(parts, 1):
                # The number of real samples travels with the indices: workers may prefetch any number of batches.
                yield [_Place(*sample, samples, number == len(parts)) for sample in part]
            position += count


@dataclass(frozen=True, slots=True)
class _Place:
    """A sample to read: its epoch, index and place in the global batch, and what is said of its micro-batch."""

    epoch: int
    index: int
    place: int
    samples: int
    is_last: bool


class _Reader(Dataset[Any]):
    """Reads a sample of the user's data set, with random numbers of its own."""

    def __init__(self, dataset: Any, seed: int, *, tolerant: bool) -> None:
        self._dataset, self._seed, self._tolerant = dataset, seed, tolerant

    def __getitem__(self, place: _Place) -> tuple[_Place, Any]:
        seed_for_sample(self._seed, place.epoch, place.index)
        try:
            return place, self._dataset[place.index]
        except Exception:
            if not self._tolerant:
                raise
            return place, _UNREAD  # who wants to know why reads it again


class _Unread:
    """Stands for a sample that could not be read."""


_UNREAD = _Unread()


class _Collator:
    def __init__(self, collate: Collate, seed: int, *, tolerant: bool) -> None:
        self._collate, self._seed, self._tolerant = collate, seed, tolerant

    def __call__(self, parts: list[tuple[_Place, Any]]) -> MicroBatch:
        first = parts[0][0]
        data = self._collated(first, [sample for _, sample in parts])
        places = [place for place, _ in parts]
        return MicroBatch(
            None if data is _UNREAD else data,
            tuple(place.index for place in places),
            first.samples,
            tuple(place.place for place in places),
            first.is_last,
            is_whole=data is not _UNREAD,
        )

    def _collated(self, first: _Place, samples: list[Any]) -> Any:
        if any(isinstance(sample, _Unread) for sample in samples):
            return _UNREAD
        seed_for_collate(self._seed, first.epoch, first.index)
        try:
            return self._collate(samples)
        except Exception:
            if not self._tolerant:
                raise
            return _UNREAD


class GlobalBatchLoader:
    """Iterates over global batches; each is this rank's list of micro-batches.

    The order is a function of seed, epoch and length; ranks, micro-batches and workers only divide it. Random numbers
    that the data set draws for a sample are a function of seed, epoch and index. The position is advanced when a batch
    is handed out, so it is right at every step boundary, whatever was prefetched.

    Args:
        dataset: map-style: `__len__` and `__getitem__`.
        division: how a global batch is divided.
        rank: place on the data-parallel axis.
        seed: base of the order.
        shuffle: a new order for each epoch.
        epochs: how many; None goes on for ever. With a number the last batch may be short.
        num_workers: worker processes.
        span: the first position of the one epoch, and the one behind the last; by default the whole data set. Indices
            and positions stay those of the whole.
        collate: makes a batch of samples; torch's default if the data set has no `collate` method.
        tolerant: what cannot be read is no error: its micro-batch comes without data, and `single` says why.
        length_budget: micro-batches are made of samples of like length, by `dataset.length_of(index)`: padded to the
            longest, none is larger than this. The micro-batch size is the most of one.

    Attributes:
        position: samples consumed; with a span, those before it too.
        end: the position behind the last sample; None where there is none.
        may_differ: fields of run.json in which a saved position may differ from this loader: somebody has accepted it.
    """

    position_is_global = True

    def __init__(
        self,
        dataset: Any,
        division: Division,
        rank: int,
        *,
        seed: int,
        shuffle: bool,
        epochs: int | None = None,
        num_workers: int = 0,
        span: tuple[int, int] | None = None,
        collate: Collate | None = None,
        tolerant: bool = False,
        length_budget: int | None = None,
    ) -> None:
        self.dataset = dataset
        self._tolerant = tolerant
        self.division = division
        self._length = len(dataset)
        self._begin, self.end = span or (0, None if epochs is None else self._length * epochs)
        self.position = self._begin
        self.may_differ: frozenset[str] = frozenset()
        self._rank = rank
        self._seed, self._shuffle = seed, shuffle
        self._num_workers, self._length_budget = num_workers, length_budget
        self._collate = collate or getattr(dataset, "collate", None) or torch.utils.data.default_collate

    @property
    def steps_left(self) -> int | None:
        """Global batches from the position to the end of the whole pass, None if it is endless."""
        if self.end is None:
            return None
        return -(-(self.end - self.position) // self.division.global_batch_size)

    @property
    def done(self) -> int:
        """Samples of this loader's own that were consumed."""
        return self.position - self._begin

    @property
    def steps_in_epoch(self) -> int:
        """Global batches that it takes to see every sample once; the last may reach into the next epoch."""
        return -(-self._length // self.division.global_batch_size)

    def __iter__(self) -> Iterator[list[MicroBatch]]:
        end = self.end
        if end is not None and self.position >= end:
            return
        order = SampleOrder(self._length, seed=self._seed, shuffle=self._shuffle)
        schedule = _Schedule(order, self._divide, self.division.global_batch_size, self.position, end)
        loader: DataLoader[Any] = DataLoader(
            _Reader(self.dataset, self._seed, tolerant=self._tolerant),
            batch_sampler=schedule,
            num_workers=self._num_workers,
            worker_init_fn=ignore_stop_signals,
            collate_fn=_Collator(self._collate, self._seed, tolerant=self._tolerant),
            # Without a generator of its own a DataLoader draws from the global one whenever it is iterated, and a
            # resumed run would see other random numbers than an uninterrupted one.
            generator=torch.Generator(),
        )
        passes = iter(loader)
        size = self.division.global_batch_size
        while end is None or self.position < end:
            count = size if end is None else min(size, end - self.position)
            # Without workers the samples are read right here, where the model draws from the same random states.
            with untouched_random_states(devices=False):
                batch = [next_of(passes)]
                while not batch[-1].is_last:
                    batch.append(next_of(passes))
            self.position += count
            yield batch

    def single(self, index: int, place: int) -> MicroBatch:
        """A micro-batch of one sample, read anew: with the random numbers that it had in the first epoch.

        Args:
            index: in the data set.
            place: in the global batch.
        """
        reader = _Reader(self.dataset, self._seed, tolerant=False)
        collate = _Collator(self._collate, self._seed, tolerant=False)
        with untouched_random_states(devices=False):
            return collate([reader[_Place(0, index, place, 1, True)]])

    def _divide(self, batch: list[_Sample]) -> _Parts:
        if self._length_budget is None:
            return micro_batches(batch, self.division, self._rank)
        lengths = [int(self.dataset.length_of(index)) for _, index, _ in batch]
        return micro_batches_by_length(batch, lengths, self.division, self._rank, self._length_budget)

    def state_dict(self) -> dict[str, int]:
        """The position in samples, with what gives it its meaning."""
        return {
            "samples": self.position,
            "length": self._length,
            "seed": self._seed,
            "shuffle": int(self._shuffle),
            "global_batch_size": self.division.global_batch_size,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a saved position. Takes effect with the next `iter()`.

        Raises:
            StateMismatchError: the data set or its order is another one.
        """
        self.check_state_dict(state)
        self.position = state["samples"]
        saved, present = state["global_batch_size"], self.division.global_batch_size
        if saved != present and self._rank == 0:
            logger.warning(
                "global_batch_size was %d when this was saved and is %d now: %d samples are done, and steps are of the "
                "present size from here on",
                saved,
                present,
                self.position,
            )

    def check_state_dict(self, state: dict[str, int]) -> None:
        """Whether a saved position means anything here. Raises StateMismatchError when it does not."""
        present = self.state_dict()
        differing = [key for key in _GUARDED_BY if state[key] != present[key]]
        if any(_GUARDED_BY[key] not in self.may_differ for key in differing):
            facts = ", ".join(f"{key} {state[key]} when saved, {present[key]} now" for key in differing)
            raise StateMismatchError(f"the position in the data cannot be used, the order would be another: {facts}")
