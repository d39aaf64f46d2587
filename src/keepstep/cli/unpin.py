"""`keepstep unpin`: takes a pin back."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import print_json


def command(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Let retention have a pinned checkpoint again. Nothing is deleted now.

    Example: keepstep unpin runs/checkpoints/stdlib-lm/save-300
    """
    from keepstep.ops.pin import unpin_checkpoint

    found = unpin_checkpoint(checkpoint)
    if as_json:
        print_json(found)
    else:
        print(f"{checkpoint} is not pinned any more" if found.changed else f"{checkpoint} was not pinned")
