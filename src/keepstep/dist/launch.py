"""Join the world that a launcher (torchrun, SLURM, Ray) describes in the environment, and leave it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from keepstep.dist.generation import own_store


TRAINING_TIMEOUT = timedelta(minutes=30)


def pick_device() -> torch.device:
    """The GPU of this local rank, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return torch.device("cpu")


def launched_ranks() -> int:
    """The number of ranks that the launcher has started."""
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def process_group() -> Iterator[torch.device]:
    """Be part of the launcher's world for the duration of the body. Without a launcher it does nothing.

    Yields:
        The device of this rank.
    """
    device = pick_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if launched_ranks() == 1 or dist.is_initialized():
        yield device
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        shared, rank, size = next(rendezvous("env://", timeout=TRAINING_TIMEOUT))
        store = own_store(shared, rank, size, TRAINING_TIMEOUT)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TRAINING_TIMEOUT)
    else:
        dist.init_process_group(backend, timeout=TRAINING_TIMEOUT)
    try:
        yield device
    finally:
        dist.destroy_process_group()
