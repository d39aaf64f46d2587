"""`keepstep watch`: score checkpoints as they appear."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer

from keepstep.cli.output import print_json

_STOPPED = 75


def command(
    folder: Annotated[str, typer.Argument(help="A run's folder, or its address on a mirror.")],
    score: Annotated[
        str | None, typer.Option("--score", help="A command with {checkpoint} in it, or package.module:function.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="name=DATA for {set} in the command, or name=COMMAND of its own; may be repeated."),
    ] = None,
    order: Annotated[Literal["newest", "oldest"], typer.Option("--order", help="Which is scored first.")] = "newest",
    once: Annotated[bool, typer.Option("--once", help="End when all that is there is scored.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on when the run is finished.")] = False,
    every: Annotated[
        float | None, typer.Option("--every", min=0.05, help="Seconds between looks; by default 5, on a mirror 60.")
    ] = None,
    hold: Annotated[
        str, typer.Option("--hold", help="Hold what is not scored back from deletion, up to this size in all: 50GB.")
    ] = "0",
    tries: Annotated[int, typer.Option("--tries", min=1, help="How often a score is tried before it has failed.")] = 3,
    pause: Annotated[float, typer.Option("--pause", min=0, help="Seconds before a second try; then doubled.")] = 30.0,
    timeout: Annotated[float | None, typer.Option("--timeout", min=0.1, help="Seconds that a score may take.")] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads for a scorer; by default a quarter of the cores.")
    ] = None,
    nice: Annotated[int, typer.Option("--nice", min=0, max=19, help="How far a scorer stands back.")] = 10,
    ignore_marks: Annotated[
        bool, typer.Option("--ignore-marks", help="Score checkpoints that hold a .scored file, too.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try what has failed for good before once more.")
    ] = False,
    scores: Annotated[
        Path | None, typer.Option("--scores", help="Folder of scores.jsonl; by default the run's folder.")
    ] = None,
    scratch: Annotated[
        Path | None, typer.Option("--scratch", help="Where checkpoints of a mirror lie while they are scored.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print at the end as JSON what was done.")] = False,
) -> None:
    """Score each committed checkpoint once, while the run goes on. Several watchers share the work.

    Example: keepstep watch runs/checkpoints/stdlib-lm --score "python evaluate.py {checkpoint}"
    """
    from keepstep.cli.logs import set_up_logging
    from keepstep.config.sizes import parse_size
    from keepstep.errors import ConfigError
    from keepstep.ops.scoring.runner import Bounds
    from keepstep.ops.scoring.watcher import WatchOptions
    from keepstep.ops.watch import watch
    from keepstep.plan.score_command import parse_sets
    from keepstep.plan.watch import Retries

    if once and follow:
        raise ConfigError("--once and --follow exclude each other")
    bounds = Bounds(nice=nice, seconds=timeout) if threads is None else Bounds(threads, nice, timeout)
    options = WatchOptions(
        order=order,
        every_seconds=every if every is not None else (60.0 if "://" in folder else 5.0),
        until="once" if once else "never" if follow else "finished",
        retries=Retries(tries, pause),
        bounds=bounds,
        hold_bytes=parse_size(hold),
        respects_marks=not ignore_marks,
        retries_failed=retry_failed,
    )
    set_up_logging()
    with _ended_by_signals():
        result = watch(folder, score, sets=parse_sets(sets or ()), scores=scores, scratch=scratch, options=options)
    if as_json:
        print_json(result)
    else:
        gone = f", {result.gone} were gone before their turn" if result.gone else ""
        before = f"; {result.failed_before} had failed before (--retry-failed)" if result.failed_before else ""
        print(f"scored {result.scored}, failed {result.failed}{gone}{before}")
    if result.failed or result.failed_before:
        raise typer.Exit(1)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A stop ends the scorer and gives up what is held; another watcher, or the next one, does what was begun."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        print("keepstep: stopped; start it again to go on", file=sys.stderr)
        raise typer.Exit(_STOPPED) from None
    finally:
        signal.signal(signal.SIGTERM, before)
