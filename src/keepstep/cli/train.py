"""`keepstep train`: run or resume a training job."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.asked import Accept, Fresh, From, Rehash, asked_for
from keepstep.cli.run_job import run_job

JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job's configuration.")]
Nproc = Annotated[int, typer.Option("--nproc", min=1, help="Processes on this machine, one for each rank.")]
Restarts = Annotated[
    int,
    typer.Option(
        "--restarts", min=0, help="Start again up to so often after a failure in training; never before the first step."
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the job file.")
]


def command(
    job: JobFile,
    nproc: Nproc = 1,
    restarts: Restarts = 0,
    overrides: Overrides = None,
    fresh: Fresh = False,
    go_back: From = None,
    accept: Accept = None,
    rehash: Rehash = False,
) -> None:
    """Run a training job, or continue it from its newest checkpoint.

    Example: keepstep train examples/stdlib_lm/train.yaml --set trainer.total_steps=600
    """
    asked = asked_for(fresh=fresh, go_back=go_back, accept=accept, rehash=rehash)
    run_job("train", job, nproc, overrides or [], asked, restarts)
