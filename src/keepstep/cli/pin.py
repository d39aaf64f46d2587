"""`keepstep pin`: a checkpoint that stays."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import print_json, printable


def command(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint.")],
    note: Annotated[
        str | None, typer.Option("--note", help="Why; replaces an earlier note, and `ls` shows it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Keep a checkpoint, whatever num_to_keep or save_total_limit say, until `keepstep unpin`. It does not count.

    Example: keepstep pin runs/checkpoints/stdlib-lm/save-300 --note "sent to review"
    """
    from keepstep.ops.pin import pin_checkpoint

    found = pin_checkpoint(checkpoint, note)
    if as_json:
        print_json(found)
    else:
        told = f": {printable(found.note)}" if found.note else ""
        print(f"{checkpoint} {'is pinned' if found.changed else 'was pinned already'}{told}")
