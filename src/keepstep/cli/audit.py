"""`keepstep audit`: was every sample seen once in each epoch?"""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import print_json, table


def command(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Audit the samples that a run has consumed; exits with 1 when one was missed or repeated.

    Needs `trainer.data.ledger: true`.

    Example: keepstep audit runs/checkpoints/stdlib-lm
    """
    from keepstep.ops.audit import audit  # needs NumPy, for which no other command should wait

    found = audit(run)
    if as_json:
        print_json(found)
    else:
        print(f"{found.samples} samples in {found.steps} steps; {found.length} make an epoch")
        rows = [
            (str(e.epoch), str(e.consumed), "over" if e.over else "under way", str(e.missed), str(e.repeated))
            for e in found.epochs
        ]
        print(table(("EPOCH", "CONSUMED", "STATE", "MISSED", "REPEATED"), rows))
        for epoch in found.epochs:
            if epoch.first_missed:
                print(f"epoch {epoch.epoch} missed {', '.join(map(str, epoch.first_missed))}")
            if epoch.first_repeated:
                print(f"epoch {epoch.epoch} repeated {', '.join(map(str, epoch.first_repeated))}")
        if found.gaps:
            print(f"{found.gaps} places in the stream were read by no rank, or by more than one")
    if not found.exact:
        raise typer.Exit(1)
