"""Costs of the data plane: coming back to a late position, and keeping the ledger. All ratios come from one run.

python -m benchmarks.data
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from keepstep.data.loader import GlobalBatchLoader
from keepstep.plan.batching import divide
from keepstep.storage.ledger import LedgerFile

BATCH = 32


class Rows:
    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def first_batch(length: int, step: int) -> None:
    """What a resumed process does with its data before the first step after `step`."""
    loader = GlobalBatchLoader(Rows(length), divide(BATCH, None, 1), 0, seed=0, shuffle=True)
    loader.load_state_dict({**loader.state_dict(), "samples": step * BATCH})
    next(iter(loader))


def resume_time(length: int, repeats: int) -> None:
    pairs = [
        (seconds(lambda: first_batch(length, 10)), seconds(lambda: first_batch(length, 100_000)))
        for _ in range(repeats)
    ]
    early, late = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(
        f"first batch after step 10: {early * 1e3:.1f} ms; after step 100,000: {late * 1e3:.1f} ms ({length} samples)"
    )
    print(f"ratio {statistics.median(b / a for a, b in pairs):.2f}")


def ledger_cost(steps: int, repeats: int) -> None:
    """The ledger's share of a step of a small model: 1 MB of weights on one core, so of a very cheap step."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 256))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(torch.ones(BATCH, 256)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    shares = []
    with tempfile.TemporaryDirectory() as folder:
        ledger = LedgerFile(Path(folder), 0, 10**6)
        for _ in range(repeats):
            training = seconds(lambda: [step() for _ in range(steps)])
            noting = seconds(lambda: [ledger.append(n, n * BATCH, list(range(BATCH))) for n in range(steps)])
            shares.append((noting / training, noting / steps, training / steps))
        size = next(Path(folder).rglob("rank_0.bin")).stat().st_size / (repeats * steps * BATCH)
        ledger.close()
    share, noted, trained = (statistics.median(column) for column in zip(*shares, strict=True))
    print(f"ledger: {noted * 1e6:.1f} us beside a step of {trained * 1e3:.2f} ms: {share:.2%}, {size:.2f} B/sample")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    resume_time(options.samples, options.repeats)
    ledger_cost(300, options.repeats)
