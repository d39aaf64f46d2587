"""Random numbers inside a data set: a function of seed, epoch and sample, wherever and whenever the sample is read."""

import random

import numpy as np
import torch
import xxhash


def seed_for_sample(seed: int, epoch: int, index: int) -> None:
    """Seed Python, NumPy and torch (its CPU generator) for reading one sample.

    It changes the global random states; the caller puts them back where something else draws from them.
    """
    _seed("sample", seed, epoch, index)


def seed_for_collate(seed: int, epoch: int, index: int) -> None:
    """The same for collating the micro-batch that begins with this sample."""
    _seed("collate", seed, epoch, index)


def seed_for_stream(seed: int, epoch: int, rank: int, worker: int, count: int) -> None:
    """The same for the sample that a reader of a stream takes after `count` others in this epoch."""
    _seed("stream", seed, epoch, rank, worker, count)


def _seed(*key: object) -> None:
    digest = xxhash.xxh3_128_digest(repr(key).encode())
    random.seed(int.from_bytes(digest[:8], "little"))
    np.random.seed(int.from_bytes(digest[8:12], "little"))
    # Only the CPU's generator: torch.manual_seed would reach for every device.
    torch.default_generator.manual_seed(int.from_bytes(digest[8:16], "little") >> 1)
