"""Everything random of a job from one seed."""

import os
import random

import numpy as np
import torch
import torch.utils.deterministic


def be_deterministic() -> None:
    """Ask torch for deterministic algorithms, where there are any, and warn where there are none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def seed_all(*key: int) -> None:
    """Seed Python, NumPy and torch (all devices) from a key: (seed,) for all ranks alike, (seed, rank) for one."""
    state = np.random.SeedSequence(key).generate_state(4, dtype=np.uint32)
    random.seed(int(state[0]))
    np.random.seed(int(state[1]))
    torch.manual_seed(int(state[2]) << 32 | int(state[3]))
