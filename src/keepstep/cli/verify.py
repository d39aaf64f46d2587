"""`keepstep verify`: every byte against its digest."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import human_size, print_json


def command(
    path: Annotated[Path, typer.Argument(help="A run's folder, or one checkpoint in it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Verify checkpoints; exits with 1 when one is damaged or incomplete.

    Example: keepstep verify runs/checkpoints/stdlib-lm
    """
    from keepstep.ops.verify import verify as verify_all
    from keepstep.plan.resume import Condition

    results = []
    for result in verify_all(path):
        results.append(result)
        if not as_json:
            print(f"{result.path}: {result.condition}, {human_size(result.size)} read", flush=True)
            for problem in result.problems:
                print(f"  {problem}")
    if as_json:
        print_json(results)
    if any(result.condition != Condition.COMPLETE.value for result in results):
        raise typer.Exit(1)
