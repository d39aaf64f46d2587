"""Kills a job at every system call of its saves, starts it again, and judges what comes out."""

import fnmatch
import logging
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from keepstep.dcp.digests import digest_tensor, digest_tree
from keepstep.dcp.metadata import read_metadata, stored_keys
from keepstep.dcp.reader import read
from keepstep.errors import FaultError
from keepstep.plan import layout
from keepstep.storage.survey import SurveyedCheckpoint, survey
from keepstep.storage.tracing import TraceSettings
from keepstep.testing.faults.faults import CALLS, Fault, Kill, options_of
from keepstep.testing.runs import Runner

logger = logging.getLogger("keepstep")

# What differs between two runs by its nature.
_IGNORED = ("tracker.*",)
_CALL = re.compile(r"^(?:(\d+) +)?(\w+)\(", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """How a run with a fault ended.

    Attributes:
        codes: exit codes of its processes, negative for signals; None for one that took too long and was ended.
        newest: the newest committed step, 0 when there is none.
        start: the step at which it began; None when it did not come so far.
        log: what it has printed.
    """

    codes: tuple[int | None, ...]
    newest: int
    start: int | None
    log: str


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


def run_with(
    job: Callable[..., Any] | Sequence[str],
    faults: Sequence[Fault],
    folder: Path,
    *,
    rank: int = 0,
    ranks: int = 1,
    timeout: float = 600,
    start_method: str = "spawn",
) -> Outcome:
    """Run a job once with faults in one of its ranks.

    The job uses a `Checkpointer`, wherever it saves: here it saves to `folder`. Faults count from its `resume()` on.

    Args:
        job: a function that trains (it may take the folder), or a command as a list of words.
        faults: what happens; none for an untouched run.
        folder: where it saves.
        rank: whose calls are hit.
        ranks: processes of a function; a command starts its own.
        timeout: seconds.
        start_method: how processes of a function are made.

    Raises:
        FaultError: the command cannot be started.
    """
    return _Bench(Runner(job, ranks, timeout, start_method), rank).run(faults, folder, folder.with_suffix(".log"))


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

    Bad is: a start that fails, one that begins before the newest step that was committed, and another final state.

    Args:
        job, rank, ranks, timeout, start_method: as of `run_with`.
        every: only each so many points.
        calls: which system calls.
        ignore: keys of state that may differ, as patterns: `task.started_at`.
        folder: where to work; by default a temporary one that is deleted.

    Raises:
        FaultError: the job fails by itself, commits nothing, or cannot be traced.
    """
    work = folder or Path(tempfile.mkdtemp(prefix="keepstep-faults-"))
    try:
        bench = _Bench(Runner(job, ranks, timeout, start_method), rank)
        return _matrix(bench, work, every, calls, (*_IGNORED, *ignore))
    finally:
        if folder is None:
            shutil.rmtree(work, ignore_errors=True)


def _matrix(bench: "_Bench", work: Path, every: int, calls: Sequence[str], ignore: Sequence[str]) -> CrashReport:
    reference = bench.run((), work / "reference", work / "reference.log", calls)
    if any(reference.codes) or not reference.newest:
        raise FaultError(f"the job fails by itself, or commits nothing (codes {reference.codes}):\n{reference.log}")
    expected = final_state(work / "reference", ignore)
    report = CrashReport(calls=bench.counted(work / "reference.log"))
    points = [Kill(name, n) for name, count in sorted(report.calls.items()) for n in range(1, count + 1)][::every]
    for number, kill in enumerate(points, 1):
        place = work / f"{kill.call}-{kill.n}"
        killed = bench.run([kill], place, place.with_suffix(".log"), calls)
        report.points += 1
        report.not_killed += not any(killed.codes)
        again = bench.run((), place, place.with_suffix(".log"))
        problem = _judge(killed, again, expected, partial(final_state, place, ignore))
        if problem:
            report.bad.append(f"killed at {kill.call} {kill.n}: {problem}")
        else:
            shutil.rmtree(place)
        if number % 10 == 0:
            logger.info("%d of %d points, %d bad", number, len(points), len(report.bad))
    return report


def _judge(killed: Outcome, again: Outcome, expected: dict[str, str], state: Callable[[], dict[str, str]]) -> str:
    if any(again.codes):
        return f"the next start failed (codes {again.codes}): {again.log[-500:]}"
    if again.start is not None and again.start < killed.newest:
        return f"it began at step {again.start}, and {killed.newest} was committed"
    found = state()
    differing = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
    return f"another final state: {', '.join(sorted(differing)[:3])}" if differing else ""


def final_state(folder: Path, ignore: Sequence[str] = _IGNORED) -> dict[str, str]:
    """The digest of every key of the newest checkpoint below a folder."""
    newest = _newest(folder)
    if newest is None:
        return {}
    keys = {
        key: stored
        for key, stored in stored_keys(read_metadata(newest.path)).items()
        if not any(fnmatch.fnmatch(key, pattern) for pattern in ignore)
    }
    tensors = {key: torch.empty(one.shape or (), dtype=one.dtype) for key, one in keys.items() if one.is_tensor}
    trees = read(newest.path, tensors, [key for key, one in keys.items() if not one.is_tensor])
    digests = {key: digest_tensor(tensor) for key, tensor in tensors.items()}
    return digests | {key: digest_tree(tree) for key, tree in trees.items()}


def _newest(folder: Path) -> SurveyedCheckpoint | None:
    """The newest committed checkpoint of all runs below a folder."""
    runs = {path.parent for path in folder.rglob("save-*") if layout.KEEPSTEP_FOLDER not in path.parts}
    complete = [one for run in runs for one in survey(run).complete]
    return max(complete, key=lambda one: one.found.step, default=None)


def _number(file: Path) -> int | None:
    """What a file says; None when it is not there, or was not written whole."""
    text = file.read_text() if file.exists() else ""
    return int(text) if text.isdecimal() else None


class _Bench:
    """Runs the job, again and again."""

    def __init__(self, runner: Runner, rank: int) -> None:
        self._runner, self._rank = runner, rank

    def run(self, faults: Sequence[Fault], folder: Path, log: Path, calls: Sequence[str] = ()) -> Outcome:
        """Once. With no faults and no calls nothing is traced."""
        folder.mkdir(parents=True, exist_ok=True)
        trace = log.with_suffix(".trace")
        start = Path(f"{trace}.start")
        start.unlink(missing_ok=True)
        options = options_of(faults, calls) if faults or calls else ()
        settings = TraceSettings(str(folder), self._rank, options, str(trace))
        codes = self._runner.codes(settings.to_environment(), folder, log)
        newest = _newest(folder)
        return Outcome(
            codes=tuple(codes),
            newest=newest.found.step if newest is not None else 0,
            start=_number(start),
            log=log.read_text(errors="replace"),
        )

    def counted(self, log: Path) -> Counter[str]:
        """How often a traced run made each call: the most that one of its threads did, since strace counts so."""
        found = Counter(_CALL.findall(log.with_suffix(".trace").read_text(errors="replace")))
        programs = {thread for thread, name in found if name == "execve"}
        most: Counter[str] = Counter()
        for (thread, name), count in found.items():
            if thread not in programs:
                most[name] = max(most[name], count)
        return most
