"""The twin check: a job that is stopped and resumed must be the job that was not stopped, bit for bit."""

import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keepstep.checkpoint.probe import ProbeSettings
from keepstep.errors import TwinCheckError
from keepstep.plan.diagnosis import Divergence, diagnose, unseeded
from keepstep.plan.trace import Trace, choose_stops, from_lines
from keepstep.testing.runs import Runner

logger = logging.getLogger("keepstep")

_AFTER = 3
_MARKER = ".keepstep-twin-check"


@dataclass(frozen=True)
class TwinReport:
    """What a twin check has found.

    Attributes:
        stops: the steps at which the job was stopped and resumed.
        steps: the last step that was compared.
        divergence: the first difference, None when there is none.
        at: the stop after which it shows; 0 when the job does not even repeat itself without one.
        note: what was not looked at, empty when all was.
        unseeded: random states (python, numpy) that the job leaves to chance.
        folder: where traces, logs and checkpoints lie; None when they are gone.
    """

    stops: tuple[int, ...]
    steps: int
    divergence: Divergence | None = None
    at: int = 0
    note: str = ""
    unseeded: tuple[str, ...] = ()
    folder: str | None = None

    @property
    def equal(self) -> bool:
        """Whether every resumed step was the same, bit for bit."""
        return self.divergence is None

    def __str__(self) -> str:
        stops = ", ".join(map(str, self.stops))
        if self.divergence is None:
            text = f"twin-equal up to step {self.steps}: stopped and resumed at step {stops}"
            return f"{text}\n  note: {self.note}" if self.note else text
        found = self.divergence
        when = f"stopped and resumed at step {self.at}" if self.at else "without any stop, in two fresh runs"
        rank = f", rank {found.rank}" if found.rank else ""
        lines = [f"not the same run: {when}, it differs first at step {found.step}{rank} in {found.component}"]
        lines += [f"  what: {found.what}"]
        if self.at:
            lines += [f"  why:  {found.why}"]
        else:
            chance = f"{', '.join(self.unseeded)} is not seeded" if self.unseeded else "an operation or a clock"
            lines += [f"  why:  the job does not repeat itself ({chance}): seed all, ignore state like a clock's"]
        if self.folder is not None:
            lines += [f"  logs: {self.folder}"]
        return "\n".join(lines)


def twin_check(
    job: Callable[..., Any] | Sequence[str],
    *,
    stops: Sequence[int] | None = None,
    ranks: int = 1,
    ignore: Sequence[str] = (),
    folder: Path | str | None = None,
    timeout: float = 3600,
    start_method: str = "spawn",
) -> TwinReport:
    """Run a job without a stop, and again with stops after which it is resumed in fresh processes; compare every step.

    The job uses a `Checkpointer`, wherever it saves: here all goes to a folder of its own, and the job ends a few steps
    after the last stop. Compared are, for each step: inputs and outputs of every forward pass, learning rates, random
    states, and all registered state.

    Args:
        job: a function that trains (it may take the folder to save to), or a command as a list of words.
        stops: at which steps; by default an early one, and those around the first epoch's end if it is near.
        ranks: processes of a function (RANK, WORLD_SIZE and MASTER_ADDR are set); a command starts its own.
        ignore: keys of state that may differ, as patterns: `task.started_at`.
        folder: where to work; by default a temporary one that is deleted if all is equal.
        timeout: seconds for one run.
        start_method: how processes of a function are made; it must be importable for "spawn".

    Raises:
        TwinCheckError: the job failed, took too long, or never told a Checkpointer of a step.
    """
    work = Path(folder) if folder is not None else Path(tempfile.mkdtemp(prefix="keepstep-twin-"))
    _take_over(work)
    try:
        report = _Check(Runner(job, ranks, timeout, start_method), work, tuple(ignore)).run(stops)
    except TwinCheckError as error:
        raise TwinCheckError(f"{error}\n  logs: {work}") from error
    if report.equal and folder is None:
        shutil.rmtree(work)
        return report
    return replace(report, folder=str(work))


def _take_over(work: Path) -> None:
    """Make the folder a check's own: what an earlier check has left there goes, anything else is left and refused.

    Raises:
        TwinCheckError: something that is no check's lies there.
    """
    work.mkdir(parents=True, exist_ok=True)
    if any(work.iterdir()) and not (work / _MARKER).is_file():
        raise TwinCheckError(f"{work} holds something that is no check's; choose an empty folder")
    for path in work.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (work / _MARKER).touch()


def _steps_in_epoch(trace: Trace) -> int | None:
    known = [step.steps_in_epoch for step in trace.steps.values() if step.steps_in_epoch is not None]
    return known[0] if known else None


def _not_covered(trace: Trace, last_stop: int) -> str:
    """What the stops have left out: a fault of the data may show only from the second epoch on."""
    epoch = _steps_in_epoch(trace)
    if epoch is None:
        return "how long an epoch is was not seen; a stop behind its end (--stop-at) tests more"
    if last_stop < epoch:
        return f"no stop lies behind the end of an epoch ({epoch} steps): --stop-at {epoch + 2} would"
    return ""


class _Check:
    def __init__(self, runner: Runner, work: Path, ignore: tuple[str, ...]) -> None:
        self._runner, self._work, self._ignore = runner, work, ignore
        self._runs = 0

    def run(self, wanted: Sequence[int] | None) -> TwinReport:
        last = max(wanted) + _AFTER if wanted else None
        whole = self._observe(ProbeSettings(str(self._work / "whole"), "", last=last), "without a stop")
        first = whole[0]
        end = max(first.steps)
        if wanted is None:
            wanted = choose_stops(_steps_in_epoch(first), first.start.total_steps).stops
        # A job may tell of some steps only: it is stopped at the next of these.
        told = sorted(first.steps)
        stops = sorted({min(s for s in told if s >= stop) for stop in wanted if 0 < stop < end} - {end})
        if not stops:
            raise TwinCheckError(f"the job ended after step {end}: no stop before it leaves a step to compare")
        before: list[Trace] = []
        chance: list[frozenset[str]] = []
        for number, stop in enumerate([*stops, None]):
            begin = stops[number - 1] if number else 0
            text = f"from step {begin + 1} on" if begin else "from the beginning"
            text += f", stopped at step {stop}" if stop else f", up to step {end}"
            traces = self._observe(ProbeSettings(str(self._work / "stopped"), "", stop, end), text)
            if not before:
                chance = [unseeded(a.start, b.start) for a, b in zip(whole, traces, strict=True)]
            for rank, trace in enumerate(traces):
                if trace.start.step != begin:
                    raise TwinCheckError(f"the job was stopped at step {begin} and resumed at step {trace.start.step}")
                saved = before[rank].steps[begin] if begin else None
                found = diagnose(whole[rank], trace, saved, self._ignore, chance[rank], rank)
                if found is not None:
                    return TwinReport(tuple(stops), end, found, begin, unseeded=tuple(sorted(chance[rank])))
            before = traces
        return TwinReport(tuple(stops), end, note=_not_covered(first, max(stops)))

    def _observe(self, settings: ProbeSettings, what: str) -> list[Trace]:
        """One run in fresh processes: the traces of its ranks."""
        self._runs += 1
        logger.info("run %d: %s", self._runs, what)
        prefix = self._work / f"run-{self._runs}"
        settings = replace(settings, trace=str(prefix))
        log = self._work / f"run-{self._runs}.log"
        self._runner.run(settings.to_environment(), Path(settings.save_dir), log)
        traces = []
        for rank in range(len(list(self._work.glob(f"{prefix.name}.rank_*")))):
            with Path(f"{prefix}.rank_{rank}").open(encoding="utf-8") as lines:
                trace = from_lines(lines)
            if trace is None or not trace.steps:
                raise TwinCheckError(
                    f"the job ended without a step: call resume(), and save_if_due(step) after every step (see {log})"
                )
            traces.append(trace)
        if not traces:
            raise TwinCheckError(f"the job made no Checkpointer (see {log})")
        return traces
