"""`keepstep ls`: list a run's folder."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import human_size, print_json, table
from keepstep.ops.listing import list_folder


def command(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List checkpoints, oldest first.

    Example: keepstep ls runs/checkpoints/stdlib-lm
    """
    listing = list_folder(folder)
    if as_json:
        print_json(listing)
        return
    if listing.checkpoints:
        rows = [
            (str(c.step), c.condition, human_size(c.size), str(c.world_size or "-"), c.created_at or "-", c.problem)
            for c in listing.checkpoints
        ]
        print(table(("STEP", "STATE", "SIZE", "RANKS", "CREATED", "PROBLEM"), rows))
    elif listing.runs:
        print(f"no checkpoints in {folder} itself; runs with checkpoints: {', '.join(listing.runs)}")
    else:
        print(f"no checkpoints in {folder}")
    if listing.leftovers:
        print(f"left by saves that did not end: {', '.join(listing.leftovers)}")
