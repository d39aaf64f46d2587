"""Starts one process for each rank with torch's own elastic launcher, and brings their exit code back."""

import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from keepstep.errors import StopRequested
from keepstep.plan.restarts import AttemptEnd, decide
from keepstep.storage.attempt_note import VARIABLE, read_end

_SHUTDOWN_SECONDS = 3600


def _config(nproc: int) -> LaunchConfig:
    # Ranks save before they leave, and get the time for it. torch 2.9 does not know these settings yet.
    known = {field.name for field in fields(LaunchConfig)}
    wanted: dict[str, Any] = {
        "shutdown_timeout": _SHUTDOWN_SECONDS,
        # Those of a stop are handled here: a second one must not break the wait for the save of the first.
        "signals_to_handle": "SIGQUIT",
    }
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        **{name: value for name, value in wanted.items() if name in known},
    )


@contextmanager
def _passing_on_once(names: Sequence[str]) -> Iterator[None]:
    """The first of these signals makes the launcher pass it on to the ranks and wait for them; others are ignored."""
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if not came:
            came = True
            # A terminal that is closed is a stop like any other, and no signal that ranks note.
            passed = signal.SIGTERM if number == signal.SIGHUP else signal.Signals(number)
            raise SignalException(f"stop requested by {signal.Signals(number).name}", sigval=passed)

    before = {number: signal.signal(number, note) for number in {signal.Signals[name] for name in names}}
    try:
        yield
    finally:
        if not came:
            for number, handler in before.items():
                signal.signal(number, handler)


def launch(arguments: list[str], nproc: int, stop_signals: Sequence[str], restarts: int = 0) -> None:
    """Run `keepstep <arguments>` on `nproc` ranks.

    Torch elastic itself restarts nothing here: it would do so whatever the exit code is. A refusal or a stop on request
    must not be retried, nor a failure that comes before the first step.

    Args:
        arguments: of the command line.
        nproc: number of ranks.
        stop_signals: those that are passed on to the ranks.
        restarts: how often at most the job is started again (`keepstep.plan.restarts` tells after which failures).

    Raises:
        typer.Exit: with the exit code of the ranks when it is not 0.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc)))
    try:
        with _passing_on_once([*stop_signals, "SIGHUP"]):
            code = _attempts(arguments, nproc, restarts)
    except SignalException:  # between two attempts: there was no rank to pass it on to
        code = StopRequested.exit_code
    if code:
        raise typer.Exit(code)


def _attempts(arguments: list[str], nproc: int, restarts: int) -> int:
    """Attempt after attempt, as long as another one may help. Returns the exit code."""
    used = 0
    while True:
        end = _attempt(arguments, nproc)
        decision = decide(end, used, restarts)
        if restarts and end.code:
            what = "starting again" if decision.restart else "not started again"
            print(f"keepstep: {what}: {decision.reason}", file=sys.stderr, flush=True)
        if not decision.restart:
            return end.code
        used += 1


def _attempt(arguments: list[str], nproc: int) -> AttemptEnd:
    with tempfile.TemporaryDirectory(prefix="keepstep-") as folder:
        os.environ[VARIABLE] = folder
        try:
            elastic_launch(_config(nproc), sys.executable)("-m", "keepstep.cli.worker", *arguments)
        except ChildFailedError:
            # The launcher tells which rank died first; what the job itself came to stands in the folder.
            # A rank that died after the main process was done has failed all the same.
            end = read_end(Path(folder), otherwise=1)
            return replace(end, code=end.code or 1)
        except SignalException:
            # Ranks that were stopped before they could note it have lost nothing: the job is to be run again.
            return replace(read_end(Path(folder), otherwise=StopRequested.exit_code), is_stopped=True)
        finally:
            del os.environ[VARIABLE]
    return AttemptEnd(0)
