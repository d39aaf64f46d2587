"""`keepstep doctor`: is this folder fit to hold checkpoints?"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.output import print_json, printable
from keepstep.errors import ConfigError

if TYPE_CHECKING:
    from keepstep.ops.doctor import Diagnosis


def command(
    folder: Annotated[Path, typer.Argument(help="Where a job is to save; it need not be there yet.")],
    keep: Annotated[int, typer.Option("--keep", min=1, help="Checkpoints that remain after a save.")] = 2,
    size: Annotated[
        str | None, typer.Option("--size", help="Of one checkpoint, such as 12GB; by default as those that are there.")
    ] = None,
    grace: Annotated[
        float | None, typer.Option("--grace", min=0, help="Seconds from a stop signal to the kill.")
    ] = None,
    mib: Annotated[int, typer.Option("--mib", min=0, help="MiB that are written and read to measure speed.")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Try what saves and resumes need of a folder, before hours are spent; exits with 1 when it is unfit.

    Leaves nothing behind. Under torchrun it says too whether all ranks see one folder.

    Example: keepstep doctor runs/checkpoints --size 12GB --grace 120
    """
    from keepstep.ops.doctor import examine
    from keepstep.plan.doctor_facts import Wishes
    from keepstep.plan.weight_files import SizeError, parse_size

    try:
        wishes = Wishes(keep, parse_size(size) if size is not None else None, grace, mib * 2**20)
    except SizeError as error:
        raise ConfigError(f"--size: {error}") from None
    diagnosis = examine(folder, wishes)
    if int(os.environ.get("RANK", "0") or 0) == 0:
        if as_json:
            print_json(diagnosis)
        else:
            _print(folder, diagnosis)
    if not diagnosis.fit:
        raise typer.Exit(1)


def _print(folder: Path, diagnosis: "Diagnosis") -> None:
    for finding in diagnosis.findings:
        print(f"{finding.level.value:8} {finding.topic}: {printable(finding.what)}")
        if finding.why:
            print(f"{'':8}   why: {printable(finding.why)}")
            print(f"{'':8}   do:  {printable(finding.to_do)}")
    print(f"{folder} is {'fit' if diagnosis.fit else 'unfit'} to hold checkpoints")
