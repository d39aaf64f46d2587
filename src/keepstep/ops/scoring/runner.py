"""Runs a scorer over one checkpoint: bounded in time, threads and priority, and not outliving its watcher."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepstep.ops.scoring import bounded
from keepstep.plan.score_command import CHECKPOINT, ScoreCommand
from keepstep.plan.scores import MetricsError, metrics_from, metrics_in
from keepstep.storage.scratch import make_scratch

_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
)
# Of what a scorer prints, the end counts: its metrics, and what it said when it failed (bytes).
_MOST_OUTPUT = 8 * 1024 * 1024
_MOST_SAID = 500
# A guardian gives a scorer 5 seconds to leave.
_PATIENCE_SECONDS = 20.0

Function = Callable[..., Mapping[str, Any]]


@dataclass(frozen=True)
class Bounds:
    """What a scorer may take. `threads`: of the usual libraries; `seconds`: None: as long as it likes."""

    threads: int = field(default_factory=lambda: min(4, max(1, (os.cpu_count() or 1) // 4)))
    nice: int = 10
    seconds: float | None = None


@dataclass(frozen=True)
class Result:
    """What a scorer did. `problem` is empty where it gave metrics."""

    metrics: Mapping[str, float]
    problem: str
    seconds: float
    command: tuple[str, ...]


def run_scorer(command: ScoreCommand, checkpoint: Path, step: int, bounds: Bounds, log: Path) -> Result:
    """Score a checkpoint. Whatever the scorer does is a result; its output stays in `log` where it failed.

    Raises:
        OSError: no process can be started, or `log` cannot be written.
    """
    scratch = make_scratch("keepstep-score")
    try:
        output = scratch / "metrics.json"
        parts = command.fill(str(checkpoint), step, str(output)) if command.parts else _call(command, checkpoint)
        started = time.monotonic()
        with log.open("wb") as said:
            printed, code = _run(parts, bounds, scratch / "printed", said.fileno())
        seconds = time.monotonic() - started
        text = _tail(output) if command.writes_file else _tail(printed)
        metrics, problem = _judge(code, text, bounds, wrote_file=command.writes_file)
        if problem:
            with log.open("ab") as said:
                said.write(_tail(printed).encode())
            said_last = _last_words(log)
            problem += f": {said_last}" if said_last and code else ""
            problem += f" (all of its output: {log})"
        else:
            log.unlink(missing_ok=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    shown = tuple(part.replace(str(output), "{output}") for part in parts) if command.parts else parts
    return Result(metrics, problem, seconds, tuple(part.replace(str(checkpoint), CHECKPOINT) for part in shown))


def call_function(function: Function, command: ScoreCommand, checkpoint: Path) -> Result:
    """Score a checkpoint by a function in this process. An exception of it is a result."""
    started = time.monotonic()
    metrics: Mapping[str, float] = {}
    problem = ""
    try:
        metrics = metrics_from(function(checkpoint, command.data) if command.data else function(checkpoint))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises is told, and the next one is scored
        problem = f"{type(error).__name__}: {error}"
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', function)}"
    return Result(metrics, problem, time.monotonic() - started, (name,))


def _call(command: ScoreCommand, checkpoint: Path) -> tuple[str, ...]:
    data = (command.data,) if command.data else ()
    return (sys.executable, "-m", "keepstep.ops.scoring.call", command.function, str(checkpoint), *data)


def _run(parts: tuple[str, ...], bounds: Bounds, printed: Path, errors: int) -> tuple[Path, int | None]:
    """Returns where its output lies, and its exit code; None where it was ended since it took too long."""
    environment = {**os.environ, **{name: str(bounds.threads) for name in _THREADS}}
    ours, theirs = os.pipe()
    try:
        # The guardian ends it all when this end of the pipe closes: also when this process is killed.
        wrapped = [sys.executable, "-S", bounded.__file__, str(bounds.nice), str(ours), *parts]
        with printed.open("wb") as out:
            # A group of its own, so that a Ctrl-C is ours; no session of its own: between sessions the system shares
            # time out whatever their priorities are.
            process = subprocess.Popen(
                wrapped,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env=environment,
                process_group=0,
                pass_fds=(ours,),
            )
        os.close(ours)
        ours = -1
        try:
            code: int | None = process.wait(bounds.seconds)
        except subprocess.TimeoutExpired:
            code = None
    finally:
        os.close(theirs)
        if ours >= 0:
            os.close(ours)
        else:
            _end(process)
    return printed, code


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Wait until its guardian has ended all of it. It has been told."""
    try:
        process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _judge(code: int | None, text: str, bounds: Bounds, *, wrote_file: bool) -> tuple[dict[str, float], str]:
    if code is None:
        return {}, f"it was ended after {bounds.seconds:g} seconds"
    if code < 0:
        return {}, f"it was ended by {_signal_name(-code)}"
    if code:
        return {}, f"exit code {code}"
    if wrote_file and not text.strip():
        return {}, "it wrote nothing to {output}"
    try:
        return metrics_in(text), ""
    except MetricsError as error:
        return {}, str(error)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_OUTPUT))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in _tail(log).splitlines() if line.strip()]
    return lines[-1][:_MOST_SAID] if lines else ""
