"""`keepstep outputs ls`: the committed parts of an inference job."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import human_size, print_json, table


def command(
    folder: Annotated[Path, typer.Argument(help="The folder of `outputs.to`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the parts that are committed; a job may be at work.

    Example: keepstep outputs ls runs/rows
    """
    from keepstep.ops.outputs.look import look

    found = look(folder)
    facts = {"rows": found.rows, "errors": found.errors, "bytes": found.bytes, "complete": found.complete}
    if as_json:
        shards = (
            {"shards": [s.folder.name for s in found.shards], "missing_shards": found.absent} if found.shards else {}
        )
        parts = [part.to_row() for part in found.parts]
        print_json(
            {"folder": str(folder), "format": found.format, **facts, "inputs": found.inputs, "parts": parts, **shards}
        )
        return
    if found.parts:
        rows = [(part.name, str(part.first), str(part.rows), human_size(part.bytes)) for part in found.parts]
        print(table(("PART", "FIRST", "ROWS", "SIZE"), rows))
    for name in found.missing:
        print(f"{name} is gone")
    for text in [*found.open_shards, *found.problems]:
        print(text)
    state = "complete" if found.complete else "the job has not ended"
    print(f"{found.rows} rows, {found.errors} failed, {human_size(found.bytes)}; {state}")
