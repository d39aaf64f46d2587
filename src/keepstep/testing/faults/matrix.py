"""Kills a job at every system call of its saves, starts it again, and judges what comes out."""

import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from keepstep.errors import FaultError
from keepstep.testing.faults.bench import IGNORED, Bench, final_state, judge
from keepstep.testing.faults.calls import count_calls
from keepstep.testing.faults.faults import CALLS, Kill, options_of
from keepstep.testing.runs import Runner

logger = logging.getLogger("keepstep")


@dataclass
class CrashReport:
    """What a crash matrix has found. `bad` is empty for a job that can be trusted.

    Attributes:
        points: how often it was killed, or should have been.
        not_killed: points at which nothing died.
        calls: how often the rank makes each call.
        bad: what went wrong, a line for each.
    """

    points: int = 0
    not_killed: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.calls.items()))
        return f"{self.points} kills ({kinds}), {self.not_killed} did not kill, {len(self.bad)} bad"

    @classmethod
    def of(cls, calls: Counter[str], chosen: Sequence[str]) -> "CrashReport":
        """An empty report of a rank that makes these calls, as far as they are chosen."""
        return cls(calls=Counter({name: count for name, count in calls.items() if name in chosen}))

    def kills(self, every: int = 1) -> list[Kill]:
        """The points at which to kill: every `every`-th call."""
        return [Kill(name, n) for name, count in sorted(self.calls.items()) for n in range(1, count + 1)][::every]


def crash_matrix(
    job: Callable[..., Any] | Sequence[str],
    *,
    rank: int = 0,
    ranks: int = 1,
    every: int = 1,
    calls: Sequence[str] = CALLS,
    ignore: Sequence[str] = (),
    folder: Path | None = None,
    timeout: float = 600,
    start_method: str = "spawn",
) -> CrashReport:
    """Kill a rank at every n-th call of each kind, start the job again, and compare with a run that nobody killed.

    Bad is: a start that fails, one that begins before the newest step that was committed (also if that checkpoint was
    deleted since), and another final state.

    Args:
        job, rank, ranks, timeout, start_method: as of `run_with`.
        every: only each so many points.
        calls: which system calls: `CALLS`, or some of `CREATES`, `WRITES`, `SYNCS`, `RENAMES`, `UNLINKS`.
        ignore: keys of state that may differ, as patterns: `task.started_at`.
        folder: where to work; by default a temporary one that is deleted.

    Raises:
        FaultError: the job fails by itself, commits nothing, cannot be traced, or makes none of these calls.
    """
    work = folder or Path(tempfile.mkdtemp(prefix="keepstep-faults-"))
    try:
        bench = Bench(Runner(job, ranks, timeout, start_method), rank)
        return _matrix(bench, work, every, calls, (*IGNORED, *ignore))
    finally:
        if folder is None:
            shutil.rmtree(work, ignore_errors=True)


def _matrix(bench: Bench, work: Path, every: int, calls: Sequence[str], ignore: Sequence[str]) -> CrashReport:
    reference = bench.run(options_of((), calls), work / "reference")
    if any(reference.codes) or not reference.newest:
        raise FaultError(f"the job fails by itself, or commits nothing (codes {reference.codes}):\n{reference.log}")
    expected = final_state(work / "reference", ignore)
    report = CrashReport.of(count_calls(bench.require_trace(work / "reference", reference.log)), calls)
    points = report.kills(every)
    if not points:
        raise FaultError(f"the rank makes none of these calls: {', '.join(calls)}")
    for number, kill in enumerate(points, 1):
        place = work / f"{kill.call}-{kill.n}"
        killed = bench.run(options_of([kill], calls), place)
        report.points += 1
        report.not_killed += not any(killed.codes)
        again = bench.run((), place)
        problem = judge(killed.committed, again, expected, partial(final_state, place, ignore))
        if problem:
            report.bad.append(f"killed at {kill.call} {kill.n}: {problem}")
        else:
            shutil.rmtree(place)
        if number % 10 == 0:
            logger.info("%d of %d points, %d bad", number, len(points), len(report.bad))
    return report
