"""`keepstep pin`: a checkpoint that stays."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import print_json


def command(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Keep a checkpoint, whatever num_to_keep or save_total_limit say, until `keepstep unpin`. It does not count.

    Example: keepstep pin runs/checkpoints/stdlib-lm/save-300
    """
    from keepstep.ops.pin import pin_checkpoint

    found = pin_checkpoint(checkpoint)
    if as_json:
        print_json(found)
    else:
        print(f"{checkpoint} is pinned" if found.changed else f"{checkpoint} was pinned already")
