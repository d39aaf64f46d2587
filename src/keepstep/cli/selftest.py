"""`keepstep selftest`: proof on one's own job that a resume changes nothing."""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import print_json
from keepstep.errors import ConfigError

Job = Annotated[
    list[str], typer.Argument(metavar="JOB.yaml | -- COMMAND...", help="A job file, or a command that runs a job.")
]


def command(
    job: Job,
    stop_at: Annotated[
        list[int] | None,
        typer.Option("--stop-at", min=1, help="A step to stop at; may be repeated. By default near the epoch's end."),
    ] = None,
    nproc: Annotated[int, typer.Option("--nproc", min=1, help="Ranks of a job file; a command starts its own.")] = 1,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the job file.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", help="State that may differ, such as task.started_at.")
    ] = None,
    folder: Annotated[Path | None, typer.Option("--folder", help="Where to work; kept afterwards.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds for one run.")] = 3600,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run some steps of a job without a stop, and again with stops and resumes; name the first thing that differs.

    Checkpoints go to a folder of its own, never to the job's. Exits with 1 when the resumed run is another run.

    Example: keepstep selftest examples/stdlib_lm/train.yaml

    Example: keepstep selftest --stop-at 40 -- python train.py --lr 0.1
    """
    from keepstep.cli.logs import set_up_logging
    from keepstep.testing.twin import twin_check

    set_up_logging()
    words = _words(job, nproc, overrides or [])
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the job ends with it
    report = twin_check(words, stops=stop_at, ignore=ignore or (), folder=folder, timeout=timeout)
    if as_json:
        print_json(report, equal=report.equal)
    else:
        print(report)
    if not report.equal:
        raise typer.Exit(1)


def _words(job: list[str], nproc: int, overrides: list[str]) -> list[str]:
    """The command to run: the user's own, or `keepstep train` or `infer` of a job file."""
    path = Path(job[0])
    if path.suffix not in (".yaml", ".yml"):
        if overrides or nproc > 1:
            raise ConfigError("--set and --nproc belong to a job file; a command has its own options")
        return job
    if len(job) > 1:
        raise ConfigError(f"one job file at a time, not {' '.join(job)}; a command stands behind --")
    from keepstep.config.load import load_job

    config = load_job(path, overrides)
    kind, *products = (
        ("train", "trainer.export_to")
        if config.trainer is not None
        else ("infer", "inference.output_to", "inference.outputs")
    )
    words = [sys.executable, "-m", "keepstep.cli.worker", kind, str(path), "--nproc", str(nproc)]
    nothing = [f"{product}=null" for product in products]
    return words + [word for override in [*overrides, *nothing] for word in ("--set", override)]
