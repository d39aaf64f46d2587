"""`keepstep verify`: every byte against its digest."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.output import human_size, print_json
from keepstep.cli.places import place_of

if TYPE_CHECKING:
    from keepstep.ops.verify import Verified


def command(
    path: Annotated[str, typer.Argument(help="A run's folder or address, or one checkpoint in it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Verify checkpoints; exits with 1 when one is damaged or incomplete.

    Example: keepstep verify runs/checkpoints/stdlib-lm
    """
    from keepstep.plan.resume import Condition

    results = []
    for result in _verify(path):
        results.append(result)
        if not as_json:
            print(f"{result.path}: {result.condition}, {human_size(result.size)} read", flush=True)
            for problem in result.problems:
                print(f"  {problem}")
    if as_json:
        print_json(results)
    if any(result.condition != Condition.COMPLETE.value for result in results):
        raise typer.Exit(1)


def _verify(text: str) -> "Iterator[Verified]":
    place = place_of(text)
    if isinstance(place, Path):
        from keepstep.ops.verify import verify

        yield from verify(place)
        return
    from keepstep.cli.progress import Bar
    from keepstep.ops.mirror.verifying import verify_address

    with Bar("reading") as bar:
        yield from verify_address(place, bar)
