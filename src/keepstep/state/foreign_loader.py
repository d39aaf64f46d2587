"""A user's own StatefulDataLoader: its position, and an iteration that goes on as if nothing had happened."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from keepstep.state.rng import untouched_random_states
from keepstep.state.streams import is_stream, is_unseeded, samples_at_risk

_END = object()
# They draw an epoch's order from the global random state (or their generator) and keep no position in it.
_FORGETFUL = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def position_of(loader: Any) -> Any:
    """The state of a data loader. One that was restored and not iterated yet is still where it was saved.

    To ask a StatefulDataLoader would make its iterator, and its workers, before a user could tell them the epoch.
    """
    if isinstance(loader, StatefulDataLoader) and loader._iterator is None and loader.next_iter_state is not None:
        return loader.next_iter_state
    return loader.state_dict()


def generator_of(loader: Any) -> torch.Generator | None:
    """The generator that a user has given to a StatefulDataLoader: its state is no part of the loader's."""
    generator = loader.generator if isinstance(loader, StatefulDataLoader) else None
    return generator if isinstance(generator, torch.Generator) else None


def resume_at_next_iter(loader: StatefulDataLoader[Any], state: Any, generator_state: bytes | None) -> None:
    """Go to a saved position with the user's next `iter(loader)`, and not before: `set_epoch` may still be called.

    Making the iterator draws random numbers, which in the uninterrupted run happened at the begin of the epoch: here
    they are put back. A position at an epoch's end gives the next epoch, and no empty one.
    """
    loader.load_state_dict(state)
    kind = type(loader)

    class Resumed(kind):  # type: ignore[misc, valid-type]
        def __iter__(self) -> Iterator[Any]:
            self.__class__ = kind
            return _resumed_iterator(self, generator_state)

    Resumed.__name__, Resumed.__qualname__ = kind.__name__, kind.__qualname__
    loader.__class__ = Resumed


def _resumed_iterator(loader: StatefulDataLoader[Any], generator_state: bytes | None) -> Iterator[Any]:
    saved = _yielded(loader.next_iter_state)
    with untouched_random_states(devices=False):
        loader.state_dict()  # makes the iterator
    generator = generator_of(loader)
    if generator is not None and generator_state is not None:
        generator.set_state(torch.frombuffer(bytearray(generator_state), dtype=torch.uint8))
    iterator = loader._iterator
    if iterator is None or iterator._finished:
        return iter(loader)
    if saved is not None:
        iterator._num_yielded = saved  # one that had to read again has counted that once more
    # Only asking for more tells whether the epoch is over: the length of a stream is an estimate.
    first = next(iter(loader), _END)
    return iter(loader) if first is _END else chain([first], iterator)


def _yielded(state: Any) -> int | None:
    return state.get("_num_yielded") if isinstance(state, dict) else None


def inexact(loader: StatefulDataLoader[Any]) -> Iterator[str]:
    """What a resume of this loader cannot bring back, in words."""
    dataset = loader.dataset
    lost = samples_at_risk(dataset)
    if lost:
        yield (
            f"up to {lost} samples in the shuffle buffer of its {type(dataset).__name__} are lost in each process that "
            "reads it, since its state does not hold them; keepstep.data.stream.Stream(dataset) reads them again"
        )
    if is_unseeded(dataset):
        yield f"the shuffle() of its {type(dataset).__name__} has no seed=, so its order is another at every start"
    sampler = getattr(loader.batch_sampler, "sampler", None) or loader.sampler
    if isinstance(sampler, _FORGETFUL) and not hasattr(sampler, "state_dict"):
        yield (
            f"its {type(sampler).__name__} of torch.utils.data keeps no position; shuffle=True, or a sampler from "
            "torchdata.stateful_dataloader.sampler, does"
        )
    if loader.num_workers and not is_stream(dataset):
        yield (
            f"random numbers that its data set draws in its {loader.num_workers} workers begin anew inside an epoch; "
            "they are exact with num_workers=0, and in jobs of keepstep's own"
        )
