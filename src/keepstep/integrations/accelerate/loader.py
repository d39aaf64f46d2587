"""A prepared loader that goes on in the middle of an epoch."""

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from keepstep.integrations.accelerate.position import (
    Begun,
    begin,
    forget,
    has_workers,
    set_draws,
    set_epoch,
    skip,
    source_of,
)
from keepstep.state.rng import read_states, set_states

_NOTHING = object()


class ResumableLoader:
    """Iterates over what is left of the epoch that a checkpoint was in; after that, over whole epochs.

    What is left comes in the order that the epoch had, and the run goes on with the random numbers that it would have
    drawn: the order is drawn again from the states at the epoch's beginning, and those of the checkpoint come back.

    Args:
        loader: as `accelerator.prepare` has returned it.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._begun: Begun | None = None
        self._pending: Begun | None = None
        self._active: Any = None

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.loader)

    @property
    def epoch(self) -> int:
        """The epoch that is under way, or the next one; from 0."""
        return int(self.loader.iteration)

    @property
    def batches_done(self) -> int:
        """Batches of the present epoch that were handed out."""
        here = self._pending or self._begun
        return 0 if here is None else here.done

    def __iter__(self) -> Iterator[Any]:
        begun, self._pending = self._pending, None
        if begun is None:
            forget(self.loader)
            self._begun = Begun(self.epoch, source_of(self.loader), reused=has_workers(self.loader))
            self._active = self.loader
            yield from self._count(iter(self.loader))
        elif begun.is_over:
            forget(self.loader)
            set_epoch(self.loader, begun.epoch + 1)
        else:
            self._begun = begun
            first, rest = self._go_on(begun)
            if first is not _NOTHING:
                begun.done += 1
                yield first
                yield from self._count(rest)
            set_epoch(self.loader, begun.epoch + 1)
        self._begun = self._active = None

    def endless(self) -> Iterator[Any]:
        """Batches without end, epoch after epoch; for loops that count steps."""
        while True:
            done = self.batches_done
            for batch in self:
                done += 1
                yield batch
            if not done:
                return  # an empty loader

    def note(self) -> Begun | None:
        """The epoch that is under way, for a checkpoint."""
        if self._begun is not None:
            self._begun.is_over = bool(getattr(self._active, "end_of_dataloader", False))
            return self._begun
        return self._pending

    def stand_at(self, begun: Begun | None) -> None:
        """Let the next iteration go on there."""
        self._pending, self._begun, self._active = begun, None, None

    def is_iterating(self, loader: Any) -> bool:
        """Whether this is the loader that batches come from at the moment."""
        return loader is self._active

    def _count(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if self._begun is not None:
                self._begun.done += 1
            yield batch

    def _go_on(self, begun: Begun) -> tuple[Any, Iterator[Any]]:
        """The first batch of what is left, and the iterator over the others."""
        now = read_states(devices=False)
        set_epoch(self.loader, begun.epoch)
        set_draws(self.loader, begun.source)
        set_states(begun.source["random"])
        is_stateful, again = getattr(self.loader, "use_stateful_dataloader", False), 0
        if is_stateful and not isinstance(self.loader.dataset, IterableDataset):
            # By its own state it would draw another order, since its sampler has none. It reads again.
            forget(self.loader)
            again = begun.done
        # A stream goes on by the state that Accelerate has loaded.
        self._active = self.loader if is_stateful else skip(self.loader, begun.done)
        rest = begin(self._active, begun.reused)
        first = next(itertools.islice(rest, again, None), _NOTHING)
        set_states(now)
        return first, rest
