"""A loader of global batches from a stream: each rank has its own, and its own position in it."""

from collections.abc import Iterator
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from keepstep.data.loader import Collate, MicroBatch
from keepstep.data.randomness import seed_for_collate
from keepstep.data.stream import Resume, Stream
from keepstep.data.workers import ignore_stop_signals
from keepstep.errors import StateError, StateMismatchError
from keepstep.plan.batching import Division
from keepstep.state.rng import untouched_random_states


class _Collator:
    def __init__(self, stream: Stream, collate: Collate, seed: int) -> None:
        self._stream, self._collate, self._seed = stream, collate, seed

    def __call__(self, samples: list[Any]) -> MicroBatch:
        # The stream is in the same process: its count tells this micro-batch from all others.
        seed_for_collate(self._seed, self._stream.epoch, self._stream.taken)
        return MicroBatch(self._collate(samples), (), len(samples))


class StreamLoader:
    """Iterates over global batches; each is this rank's list of micro-batches, taken from this rank's stream.

    A rank whose stream ends begins it again, in the same step. A micro-batch never spans two epochs: the last that a
    rank (or each of its workers) takes of an epoch may be short, and counts like any other in the mean of the losses.

    Args:
        dataset: iterable; which samples are whose, by rank and by worker, is its own business.
        division: how a global batch is divided.
        rank: place on the data-parallel axis.
        seed: base of the random numbers that the data set draws.
        num_workers: worker processes of each rank.
        persistent_workers: keep them from one epoch to the next.
        collate: makes a batch of samples; torch's default if the data set has no `collate` method.
        resume: see `Stream`.
    """

    def __init__(
        self,
        dataset: Any,
        division: Division,
        rank: int,
        *,
        seed: int,
        num_workers: int = 0,
        persistent_workers: bool = False,
        collate: Collate | None = None,
        resume: Resume = "auto",
    ) -> None:
        self.division = division
        self.stream = Stream(dataset, seed=seed, rank=rank, resume=resume)
        self._epoch = 0
        self._num_workers = num_workers
        own = collate or getattr(dataset, "collate", None) or torch.utils.data.default_collate
        self._loader: StatefulDataLoader[Any] = StatefulDataLoader(
            self.stream,
            batch_size=division.microbatch_size,
            num_workers=num_workers,
            persistent_workers=persistent_workers and num_workers > 0,
            worker_init_fn=ignore_stop_signals,
            collate_fn=_Collator(self.stream, own, seed),
            generator=torch.Generator(),
        )
        self._passes: Iterator[MicroBatch] | None = None

    @property
    def epochs_ended(self) -> int:
        """How often this rank's stream has come to its end."""
        return self._epoch

    def __iter__(self) -> Iterator[list[MicroBatch]]:
        while True:
            with untouched_random_states(devices=False):
                batch = [self._next() for _ in range(self.division.accumulation)]
            yield batch

    def _begun(self) -> Iterator[MicroBatch]:
        if self._passes is None:
            self._passes = iter(self._loader)
        return self._passes

    def _next(self) -> MicroBatch:
        for micro in self._begun():
            return micro
        self._epoch += 1
        self.stream.begin(self._epoch)
        self._passes = iter(self._loader)
        for micro in self._passes:
            return micro
        raise StateError(f"the data set gave no sample in epoch {self._epoch} of this rank's stream")

    def state_dict(self) -> dict[str, Any]:
        """The positions of all of this rank's readers, with what gives them their meaning."""
        self._begun()
        return {
            "epoch": self._epoch,
            "num_workers": self._num_workers,
            "microbatch_size": self.division.microbatch_size,
            "loader": self._loader.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved position.

        Raises:
            StateMismatchError: it belongs to another number of workers.
        """
        self.check_state_dict(state)
        self._epoch = state["epoch"]
        self.stream.begin(self._epoch)
        self._loader.load_state_dict(state["loader"])
        self._passes = iter(self._loader)

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Whether a saved position means anything here. Raises StateMismatchError when it does not."""
        saved, present = state["num_workers"], self._num_workers
        if saved != present:
            raise StateMismatchError(
                f"the position in the stream is that of {saved} workers, this job has {present}. Each worker of a "
                f"stream has a position of its own: resume with num_workers: {saved}"
            )
        sizes = state["microbatch_size"], self.division.microbatch_size
        if saved and sizes[0] != sizes[1]:
            raise StateMismatchError(
                f"the position in the stream was saved with microbatch_size {sizes[0]}, this job has {sizes[1]}: "
                "workers would hand their samples out in another order"
            )
