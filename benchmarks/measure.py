"""What the benchmarks share: timing, floors, and a step that keeps the machine busy as training does."""

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from keepstep.storage.buffers import PageBuffer

_MIB = 1 << 20


@dataclass
class Row:
    """One line of the table: median seconds of some runs."""

    name: str
    seconds: list[float]
    gib: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def line(self) -> str:
        speed = f"{self.gib / self.median:7.2f} GiB/s" if self.gib else " " * 13
        return f"{self.name:46s} {self.median:8.3f} s {speed}  ({min(self.seconds):.3f} to {max(self.seconds):.3f})"


def timed(
    name: str,
    work: Callable[[], object],
    *,
    gib: float = 0.0,
    before: Callable[[], object] = lambda: None,
    runs: int = 5,
) -> Row:
    """Run it some times and print a line."""
    seconds = []
    for _ in range(runs):
        before()
        os.sync()
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    row = Row(name, seconds, gib)
    print(row.line(), flush=True)
    return row


def machine() -> dict[str, Any]:
    """The machine that the figures are of."""
    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def raw_write(path: Path, views: list[memoryview]) -> None:
    """Write and sync through the cache."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for view in views:
        while view:
            view = view[os.write(descriptor, view[: 8 * _MIB]) :]
    os.fsync(descriptor)
    os.close(descriptor)


def raw_direct_write(path: Path, buffer: PageBuffer, size: int) -> None:
    """The floor of a durable save: write past the cache from page-aligned memory, and sync."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_DIRECT", 0)
    descriptor = os.open(path, flags)
    for begin in range(0, size, 32 * _MIB):
        view = buffer.view[begin : min(begin + 32 * _MIB, size)]
        while view:
            view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)
    os.close(descriptor)


def raw_read(path: Path, views: list[memoryview]) -> None:
    """The floor of a load."""
    descriptor = os.open(path, os.O_RDONLY)
    for view in views:
        while view:
            view = view[os.readv(descriptor, [view]) :]
    os.close(descriptor)


class Training:
    """A step like one of training: matrix products on all cores."""

    def __init__(self) -> None:
        self._a = torch.randn(1024, 1024)
        self.step()
        self.alone()

    def alone(self, seconds: float = 1.0) -> float:
        """Median seconds of a step with nothing beside it."""
        end, steps = time.perf_counter() + seconds, []
        while time.perf_counter() < end:
            steps.append(self.step())
        return statistics.median(steps)

    def step(self) -> float:
        """One step; its seconds."""
        start = time.perf_counter()
        a = self._a
        for _ in range(3):
            a = a @ self._a
            a = a / a.norm()
        return time.perf_counter() - start


@dataclass
class Asynchronous:
    """What one save beside the training cost: all in seconds but `slower`, the factor of a step's time meanwhile."""

    stall: float
    written: float
    slower: float
    lost: float


def asynchronous(training: Training, start: Callable[[], Callable[[], bool]]) -> Asynchronous:
    """Start a save, train until it is written.

    Args:
        training: the job.
        start: starts the save; returns what tells whether it is over.
    """
    os.sync()
    before = training.alone()
    begin = time.perf_counter()
    is_over = start()
    stall = time.perf_counter() - begin
    steps: list[float] = []
    while not is_over():
        steps.append(training.step())
    written = time.perf_counter() - begin
    # On a shared machine a step's own time drifts from second to second: measured before and after.
    alone = (before + training.alone()) / 2
    slower = statistics.fmean(steps) / alone if steps else 1.0
    return Asynchronous(stall, written, slower, written - len(steps) * alone)


def median_of(name: str, saves: list[Asynchronous]) -> Asynchronous:
    """Print a line for some saves; the median of each figure."""
    middle = Asynchronous(
        *(statistics.median(getattr(one, part) for one in saves) for part in ("stall", "written", "slower", "lost"))
    )
    print(
        f"{name:34s} stall {middle.stall:.3f} s (first {saves[0].stall:.3f})  written after {middle.written:.2f} s  "
        f"step x {middle.slower:.2f}  training time lost {middle.lost:.2f} s",
        flush=True,
    )
    return middle
