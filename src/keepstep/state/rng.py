"""The random states of a rank: `rng.rank_<r>`: Python, NumPy, torch, and every CUDA device."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from keepstep.dcp.entries import Entry, Scope, Stored
from keepstep.errors import StateMismatchError
from keepstep.state.codec import decode, encode
from keepstep.state.component import LoadRequest, under


class RngComponent:
    """Reads and sets all global random states of this rank. Applied last, since loading may draw numbers."""

    name = "rng"

    def __init__(self, rank: int) -> None:
        self._key = f"{self.name}.rank_{rank}"
        self._rank = rank

    def collect(self) -> dict[str, Entry]:
        state = {
            "python": random.getstate(),
            "numpy": np.random.get_state(legacy=False),
            "torch": _bytes(torch.get_rng_state()),
            "cuda": [_bytes(state) for state in torch.cuda.get_rng_state_all()] if _cuda_in_use() else [],
        }
        return {self._key: Entry(encode(state, self._key, {}), Scope.ONE_RANK)}

    def request(self, stored: Mapping[str, Stored]) -> LoadRequest:
        own = under(self.name, stored)
        # Other ranks take their own; those of ranks that no longer exist stay unread.
        request = LoadRequest(exempt=set(own) - {self._key})
        if self._key in own:
            request.trees.add(self._key)
        else:
            ranks = ", ".join(sorted(key.removeprefix(f"{self.name}.rank_") for key in own)) or "none"
            request.missing.append(f"{self._key} (the checkpoint holds random states of ranks: {ranks})")
        return request

    def apply(self, values: Mapping[str, Any]) -> None:
        state = decode(values[self._key], {})
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        torch.set_rng_state(_tensor(state["torch"]))
        if state["cuda"]:
            if not torch.cuda.is_available() or torch.cuda.device_count() != len(state["cuda"]):
                raise StateMismatchError(
                    f"{self._key} holds the states of {len(state['cuda'])} CUDA devices; this rank sees "
                    f"{torch.cuda.device_count() if torch.cuda.is_available() else 0}"
                )
            torch.cuda.set_rng_state_all([_tensor(one) for one in state["cuda"]])


def _cuda_in_use() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _bytes(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
