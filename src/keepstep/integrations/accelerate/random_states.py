"""A rank's random states, as Accelerate writes them. It hides every failure to restore them; here each is an error."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from keepstep.errors import StateMismatchError

_NEEDED = ("step", "random_state", "numpy_random_seed", "torch_manual_seed")
_CUDA = "torch_cuda_manual_seed"


def file_name(rank: int) -> str:
    """Accelerate's name of it."""
    return f"random_states_{rank}.pkl"


def read_random_states(path: Path) -> Mapping[str, Any]:
    """Read them and look whether all are there that this process needs.

    Raises:
        StateMismatchError: some are missing, or they are of another number of devices.
        OSError, RuntimeError, pickle.UnpicklingError: the file cannot be read.
    """
    from accelerate.utils import load

    states: Mapping[str, Any] = load(path)
    needed = [*_NEEDED, *([_CUDA] if torch.cuda.is_available() else [])]
    missing = [name for name in needed if name not in states]
    if missing:
        raise StateMismatchError(
            f"{path} lacks {', '.join(missing)}: the random numbers could not go on. Resume on devices of the kind "
            "that the run was saved on"
        )
    if torch.cuda.is_available() and len(states[_CUDA]) != torch.cuda.device_count():
        raise StateMismatchError(
            f"{path} holds the random states of {len(states[_CUDA])} CUDA devices; this rank sees "
            f"{torch.cuda.device_count()}. Make as many visible"
        )
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """Set them, last of all: loading may have drawn numbers."""
    random.setstate(states["random_state"])
    np.random.set_state(states["numpy_random_seed"])
    torch.set_rng_state(states["torch_manual_seed"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states[_CUDA])
