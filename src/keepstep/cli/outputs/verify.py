"""`keepstep outputs verify`: every part against its digest, and every input once."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import human_size, print_json


def command(
    folder: Annotated[Path, typer.Argument(help="The folder of `outputs.to`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Verify the committed parts; exits with 1 when bytes differ, or an input is missing or there twice.

    Example: keepstep outputs verify runs/rows
    """
    from keepstep.cli.progress import Bar
    from keepstep.ops.outputs.verify import verify

    with Bar("reading") as bar:
        found = verify(folder, bar)
    outputs = found.outputs
    if as_json:
        facts = {"rows": outputs.rows, "errors": outputs.errors, "complete": outputs.complete}
        print_json({"folder": str(folder), **facts, "problems": list(found.problems)})
    else:
        for problem in found.problems:
            print(problem)
        well = f"{len(found.problems)} problems" if found.problems else "all as written, each position once"
        state = "" if outputs.complete else " (the job has not ended)"
        print(f"{outputs.rows} rows, {outputs.errors} failed, {human_size(outputs.bytes)} read: {well}{state}")
    if found.problems:
        raise typer.Exit(1)
