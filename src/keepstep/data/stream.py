"""A stream (an iterable data set) that comes back to any position, by its own state or by reading it again."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

from torch.utils.data import IterableDataset, get_worker_info

from keepstep.data.nodes import as_dataset
from keepstep.data.randomness import seed_for_stream
from keepstep.errors import ConfigError
from keepstep.state.rng import untouched_random_states
from keepstep.state.streams import has_state, samples_at_risk

Resume = Literal["auto", "state", "replay"]


class Stream(IterableDataset[Any]):
    """Wraps an iterable data set so that its position can be saved; use it in a StatefulDataLoader of your own.

    Each process that reads (a rank, or a worker of its loader) counts the samples it has taken. Random numbers that the
    data set draws for a sample are a function of seed, epoch, reader and count: read again, it gives the same samples.
    A data set with `set_epoch` is told the epoch.

    Args:
        dataset: has `__iter__`; with `state_dict` and `load_state_dict` it, or its iterator, can go on at once.
        seed: base of the random numbers.
        rank: the place on the data-parallel axis. Which samples are whose is the data set's own business.
        resume: "state" goes on from the data set's own state; "replay" reads the epoch again up to the position;
            "auto" takes the state unless it is known to leave something out.

    Raises:
        ConfigError: "state" was asked for, and the data set has none.
    """

    def __init__(self, dataset: Any, *, seed: int = 0, rank: int = 0, resume: Resume = "auto") -> None:
        dataset = as_dataset(dataset)
        if resume == "state" and not has_state(dataset):
            raise ConfigError(
                f"a {type(dataset).__name__} has no state_dict and load_state_dict: it can only be read again (replay)"
            )
        self.dataset = dataset
        self.by_state = resume == "state" or (resume == "auto" and has_state(dataset) and not samples_at_risk(dataset))
        self.epoch = 0
        self.taken = 0
        self._seed, self._rank = seed, rank
        self._ended = False
        self._loaded = False
        self._is_open = False
        self._inner: Any = None

    def begin(self, epoch: int) -> None:
        """The next iteration is over this epoch, from its first sample."""
        # What a data set kept at the end of one epoch (an epoch of its own, a generator) it needs in the next.
        carried = self._inner if self._ended else None
        self.epoch, self.taken, self._ended, self._loaded, self._inner = epoch, 0, False, False, carried
        self._tell_epoch()

    def set_epoch(self, epoch: int) -> None:
        """Call it at the begin of each epoch if your loader has workers. The epoch of a restored position goes on."""
        if epoch != self.epoch:
            self.begin(epoch)

    def _tell_epoch(self) -> None:
        # Hugging Face's workers share their epoch with the main process, and two that set it at once get a wrong one:
        # it is told before they start, and they leave it alone.
        if hasattr(self.dataset, "set_epoch") and getattr(self.dataset, "epoch", None) != self.epoch:
            self.dataset.set_epoch(self.epoch)

    def __iter__(self) -> Iterator[Any]:
        # Workers that live on are not told of a new epoch: after the end of one comes the next.
        if self._ended and not self._loaded:
            self.begin(self.epoch + 1)
        self._loaded = self._is_open = False
        return iter(()) if self._ended else self._read()

    def _read(self) -> Iterator[Any]:
        with self._seeded(-1):
            samples = self._open()
        if self._inner is None:
            for count in range(self.taken):
                self._next(samples, count)
        self._inner, self._is_open = None, True
        while True:
            part = self._next(samples, self.taken)
            if not part:
                self._ended = True
                return
            self.taken += 1
            yield part[0]

    def _open(self) -> Iterator[Any]:
        self._tell_epoch()
        if self._inner is not None:
            self.dataset.load_state_dict(self._inner)
        return iter(self.dataset)

    def _next(self, samples: Iterator[Any], count: int) -> tuple[Any, ...]:
        """The next sample in a tuple, an empty one at the end."""
        with self._seeded(count):
            for sample in samples:
                return (sample,)
        return ()

    @contextmanager
    def _seeded(self, count: int) -> Iterator[None]:
        worker = get_worker_info()
        # In the main process the model draws from the same random states.
        with untouched_random_states(devices=False) if worker is None else nullcontext():
            seed_for_stream(self._seed, self.epoch, self._rank, worker.id if worker else 0, count)
            yield

    def state_dict(self) -> dict[str, Any]:
        """Epoch, samples taken in it by this process, and the data set's own state where that is used."""
        # Workers are asked before they have read anything: then what was loaded still holds.
        inner = self.dataset.state_dict() if self.by_state and self._is_open else self._inner
        return {"epoch": self.epoch, "taken": self.taken, "ended": self._ended, "inner": inner}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved position with the next `iter()`."""
        self.epoch, self.taken, self._ended = state["epoch"], state["taken"], state["ended"]
        self._inner = state["inner"] if self.by_state else None
        self._loaded = True
