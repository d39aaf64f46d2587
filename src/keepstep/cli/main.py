"""`keepstep`: the entry point of all commands."""

import sys
from typing import Annotated

import typer

from keepstep.cli import (
    adopt,
    advise,
    audit,
    best,
    can_resume,
    convert,
    diff,
    doctor,
    estimate,
    export,
    infer,
    ls,
    pin,
    prune,
    pull,
    push,
    report,
    selftest,
    show,
    top,
    train,
    unpin,
    verify,
    watch,
)
from keepstep.cli.output import report_error
from keepstep.cli.outputs import ls as outputs_ls
from keepstep.cli.outputs import merge as outputs_merge
from keepstep.cli.outputs import push as outputs_push
from keepstep.cli.outputs import verify as outputs_verify
from keepstep.errors import KeepstepError

# Each command imports what it works with when it is called: `keepstep ls` does not wait for what others need.
app = typer.Typer(
    name="keepstep",
    help="Exact resume for PyTorch training and inference jobs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    train,
    infer,
    can_resume,
    ls,
    show,
    diff,
    export,
    convert,
    verify,
    pull,
    push,
    best,
    prune,
    pin,
    unpin,
    watch,
    adopt,
    audit,
    doctor,
    advise,
    estimate,
    report,
    top,
    selftest,
):
    app.command(command.__name__.rpartition(".")[2].replace("_", "-"))(command.command)

outputs = typer.Typer(no_args_is_help=True, help="Look at, verify, merge and copy the outputs of an inference job.")
for command in (outputs_ls, outputs_verify, outputs_merge, outputs_push):
    outputs.command(command.__name__.rpartition(".")[2])(command.command)
app.add_typer(outputs, name="outputs")


def _print_version(asked: bool) -> None:
    if asked:
        from importlib import metadata

        print(f"keepstep {metadata.version('keepstep')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Exact resume for PyTorch training and inference jobs."""


def main() -> None:
    """Run one command and exit with its code: see the README for what each code means."""
    try:
        app()
    except KeepstepError as error:
        report_error(error)
        sys.exit(error.exit_code)
