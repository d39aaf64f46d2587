"""Where a prepared loader is: its epoch, how many batches of it were taken, and what its order was drawn from.

Accelerate keeps none of this, or (`use_stateful_dataloader`) only the count: a resumed run would shuffle anew.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset

from keepstep.state.rng import read_states


@dataclass
class Begun:
    """An epoch that is under way.

    Attributes:
        epoch: its number.
        source: random states and those of the loader's generators when it began; its order comes from them.
        done: batches that were handed out.
        is_over: whether the last of them was the epoch's last.
        reused: whether it was begun by workers that lived already: those get no new seed, which would be drawn.
    """

    epoch: int
    source: Mapping[str, Any]
    done: int = 0
    is_over: bool = False
    reused: bool = False

    def to_tree(self) -> dict[str, Any]:
        """For a file."""
        return {**vars(self), "source": dict(self.source)}


def has_workers(loader: Any) -> bool:
    """Whether the workers of the epoch before go on in the next one."""
    return bool(loader.persistent_workers and loader.num_workers and getattr(_base(loader), "_iterator", None))


def forget(loader: Any) -> None:
    """Let a stateful loader begin an epoch like any other, without state that it has loaded or drawn for already."""
    base = _base(loader)
    if getattr(base, "next_iter_state", None) is not None or getattr(base, "_initial_iter_for_state_dict", False):
        base.load_state_dict({})
        base.next_iter_state = None


def begin(loader: Any, reused: bool) -> Iterator[Any]:
    """Iterate, with a seed for the workers that is drawn as it was."""
    base = _base(loader)
    if not reused:
        return iter(loader)
    generator, base.generator = base.generator, torch.Generator()

    def batches() -> Iterator[Any]:
        for number, batch in enumerate(loader):
            if number == 0:
                base.generator = generator
            yield batch

    return batches()


def _base(loader: Any) -> Any:
    return getattr(loader, "base_dataloader", loader)


def is_known(loader: Any) -> bool:
    """Whether it is one of Accelerate's own loaders; those of plugins and TPUs have no position."""
    return hasattr(loader, "iteration") and hasattr(loader, "dataset")


def source_of(loader: Any) -> dict[str, Any]:
    """What the order of the epoch that begins now will be drawn from. Draws nothing."""
    return {"random": read_states(devices=False), **draws_of(loader)}


def draws_of(loader: Any) -> dict[str, Any]:
    """States of the loader's own generators, and the seed of Accelerate's seedable sampler."""
    states = [generator.get_state().numpy().tobytes() for generator in _generators(loader)]
    sampler = sampler_of(loader)
    return {"generators": states, "seed": getattr(sampler, "initial_seed", None)}


def set_draws(loader: Any, source: Mapping[str, Any]) -> None:
    """Put them back. A loader that has another number of generators now keeps those that it has beyond."""
    for generator, state in zip(_generators(loader), source["generators"], strict=False):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    sampler = sampler_of(loader)
    if source["seed"] is not None and hasattr(sampler, "initial_seed"):
        sampler.initial_seed = source["seed"]


def set_epoch(loader: Any, epoch: int) -> None:
    """Let a loader stand before this epoch."""
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    loader.iteration = epoch


def sampler_of(loader: Any) -> Any:
    """The innermost sampler of a loader, below those that make batches and divide them among ranks."""
    found = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    while True:
        inner = getattr(found, "batch_sampler", None)
        inner = getattr(found, "sampler", None) if inner is None else inner
        if inner is None:
            return found
        found = inner


def skip(loader: Any, batches: int) -> Any:
    """A loader of what is left of an epoch after so many batches."""
    from accelerate import PartialState, skip_first_batches
    from accelerate.data_loader import DataLoaderDispatcher, SkipBatchSampler

    is_stream = isinstance(loader.dataset, IterableDataset)
    if isinstance(loader, DataLoaderDispatcher) and not is_stream and not loader.split_batches:
        # There the main process reads a batch for each rank, and Accelerate skips what it reads.
        batches *= PartialState().num_processes
    rest = skip_first_batches(loader, batches)
    skipping = rest.sampler if isinstance(rest.sampler, BatchSampler) else rest.batch_sampler
    if isinstance(skipping, SkipBatchSampler):
        # It lacks what the loader asks its sampler for; without it the remainder of the last batch would be unknown.
        for name in ("batch_size", "drop_last", "split_batches", "num_processes"):
            if hasattr(skipping.batch_sampler, name):
                setattr(skipping, name, getattr(skipping.batch_sampler, name))
    return rest


def _generators(loader: Any) -> list[torch.Generator]:
    sampler = sampler_of(loader)
    holders = (
        getattr(sampler, "generator", None),
        getattr(loader, "generator", None),
        getattr(loader, "synchronized_generator", None),
        getattr(loader.dataset, "generator", None),
    )
    found: list[torch.Generator] = []
    for one in holders:
        if isinstance(one, torch.Generator) and not any(one is other for other in found):
            found.append(one)
    return found
