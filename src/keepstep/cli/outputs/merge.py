"""`keepstep outputs merge`: one file of all parts, in input order."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import print_json


def command(
    folder: Annotated[Path, typer.Argument(help="The folder of `outputs.to`.")],
    out: Annotated[Path, typer.Argument(help="The file to write; JSON lines are compressed by its end: .gz, .zst.")],
    partial: Annotated[bool, typer.Option("--partial", help="Also while the job runs: what is committed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Merge the parts into one file, with the rows in the order of the input. It appears when it is whole.

    Example: keepstep outputs merge runs/rows rows.jsonl
    """
    from keepstep.cli.progress import Bar
    from keepstep.ops.outputs.merge import merge

    with Bar("merging") as bar:
        found = merge(folder, out, partial=partial, on_rows=bar)
    if as_json:
        print_json({"file": str(out), "rows": found.rows, "errors": found.errors, "complete": found.complete})
    else:
        failed = f"; {found.errors} samples failed and have none" if found.errors else ""
        print(f"{out}: {found.rows} rows{failed}")
