"""The random states of a rank: `rng.rank_<r>`: Python, NumPy, torch, and every CUDA device."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import xxhash

from keepstep.dcp.entries import Entry, Scope, Stored
from keepstep.errors import StateMismatchError
from keepstep.state.codec import decode, encode
from keepstep.state.component import LoadRequest, under


class RngComponent:
    """Reads and sets all global random states of this rank. Applied last, since loading may draw numbers.

    A rank that the checkpoint does not know (there are more ranks now) gets a stream of its own, derived from the state
    of rank 0 and the rank's number: the same at every such resume, and like no other rank's.
    """

    name = "rng"

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._key = f"{self.name}.rank_{rank}"
        self._source = self._key

    def collect(self) -> dict[str, Entry]:
        return {self._key: Entry(encode(read_states(), self._key, {}), Scope.ONE_RANK)}

    def request(self, stored: Mapping[str, Stored]) -> LoadRequest:
        own = under(self.name, stored)
        # Other ranks take their own; those of ranks that no longer exist stay unread.
        self._source = self._key if self._key in own else f"{self.name}.rank_0"
        request = LoadRequest(exempt=set(own) - {self._source})
        if self._source in own:
            request.trees.add(self._source)
        else:
            request.missing.append(f"{self.name}.rank_* (random states)")
        return request

    def check(self, trees: Mapping[str, Any]) -> None:
        devices = len(decode(trees[self._source], {})["cuda"])
        if self._source == self._key and devices not in (0, _device_count()):
            raise StateMismatchError(
                f"{self._key} holds the states of {devices} CUDA devices; this rank sees {_device_count()}"
            )

    def apply(self, values: Mapping[str, Any]) -> None:
        state = decode(values[self._source], {})
        if self._source != self._key:
            _seed(xxhash.xxh3_64_digest(state["torch"]), self._rank)
        else:
            set_states(state)


def read_states(*, devices: bool = True) -> dict[str, Any]:
    """All global random states of this process, with those of its CUDA devices or without. Draws nothing."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": _bytes(torch.get_rng_state()),
        "cuda": [_bytes(state) for state in torch.cuda.get_rng_state_all()] if devices and _cuda_in_use() else [],
    }


def set_states(states: Mapping[str, Any]) -> None:
    """Put all global random states back."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(_tensor(states["torch"]))
    if states["cuda"]:
        torch.cuda.set_rng_state_all([_tensor(one) for one in states["cuda"]])


@contextmanager
def untouched_random_states(*, devices: bool = True) -> Iterator[None]:
    """Whatever the body draws, the process goes on with the numbers that it would have drawn without it.

    Args:
        devices: also for CUDA devices, which waits for them.
    """
    before = read_states(devices=devices)
    try:
        yield
    finally:
        set_states(before)


def _seed(origin: bytes, rank: int) -> None:
    key = np.random.SeedSequence([int.from_bytes(origin, "big"), rank])
    python, numpy, high, low = key.generate_state(4, dtype=np.uint32)
    random.seed(int(python))
    np.random.seed(int(numpy))
    torch.manual_seed(int(high) << 32 | int(low))


def _device_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _cuda_in_use() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _bytes(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
