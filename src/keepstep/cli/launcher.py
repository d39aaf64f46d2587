"""Starts one process for each rank with torch's own elastic launcher, and brings their exit code back."""

import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any

import typer
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from keepstep.errors import StopRequested

_SHUTDOWN_SECONDS = 3600
OUTCOME_VARIABLE = "KEEPSTEP_OUTCOME_FILE"


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


def launch(arguments: list[str], nproc: int, stop_signals: Sequence[str]) -> None:
    """Run `keepstep <arguments>` on `nproc` ranks.

    A failed rank is not restarted here: whether to run again is the scheduler's decision, and a refusal or a stop on
    request must not be retried.

    Args:
        arguments: of the command line.
        nproc: number of ranks.
        stop_signals: those that are passed on to the ranks.

    Raises:
        typer.Exit: with the exit code of the ranks when it is not 0.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc)))
    with tempfile.TemporaryDirectory(prefix="keepstep-") as folder:
        outcome = Path(folder) / "outcome"
        os.environ[OUTCOME_VARIABLE] = str(outcome)
        config = _config(nproc)
        code = 0
        try:
            with _passing_on_once([*stop_signals, "SIGHUP"]):
                elastic_launch(config, sys.executable)("-m", "keepstep.cli.worker", *arguments)
        except ChildFailedError:
            # The launcher tells which rank died first; what the job itself came to stands in the outcome file.
            # A rank that died after the main process was done has failed all the same.
            code = (int(outcome.read_text()) if outcome.exists() else 1) or 1
        except SignalException:
            # Ranks that were stopped before they could note it have lost nothing: the job is to be run again.
            code = int(outcome.read_text()) if outcome.exists() else StopRequested.exit_code
        finally:
            del os.environ[OUTCOME_VARIABLE]
    if code:
        raise typer.Exit(code)
