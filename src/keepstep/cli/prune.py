"""`keepstep prune`: retention by hand."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import human_size, print_json


def command(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    keep: Annotated[int, typer.Option("--keep", min=1, help="How many of the newest stay; a Trainer's best is one.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Delete old checkpoints. Incomplete and foreign folders are left alone.

    Example: keepstep prune runs/checkpoints/stdlib-lm --keep 2 --dry-run
    """
    from keepstep.ops.prune import apply_prune, plan_prune

    plan = plan_prune(folder, keep)
    if not dry_run:
        apply_prune(plan)
    if as_json:
        print_json(plan, dry_run=dry_run)
        return
    for problem in plan.damaged:
        print(f"damaged, does not count and stays: {problem}")
    for verdict in plan.verdicts:
        word = "keep" if verdict.keep else ("would delete" if dry_run else "deleted")
        print(f"{word} {plan.prefix}-{verdict.step}: {verdict.reason}")
    if plan.put_away:
        print(f"{human_size(plan.put_away)} lie in quarantine or were set aside ({folder}/.keepstep): yours to delete")
    print(f"{human_size(plan.freed)} {'would be freed' if dry_run else 'freed'}")
