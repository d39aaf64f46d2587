"""`keepstep pull`: checkpoints from a mirror to a folder."""

import sys
from typing import Annotated

import typer

from keepstep.cli.output import human_size, print_json
from keepstep.cli.places import folder_of


def command(
    address: Annotated[str, typer.Argument(help="Of a checkpoint on a mirror, or of a run there.")],
    folder: Annotated[str, typer.Argument(help="The run's folder here.")],
    step: Annotated[
        list[int] | None, typer.Option("--step", min=0, help="Which of a run; may be given several times.")
    ] = None,
    take_all: Annotated[bool, typer.Option("--all", help="All that are complete, not the newest alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy checkpoints from a mirror to a folder, every byte compared with its digest.

    Example: keepstep pull s3://bucket/runs/stdlib-lm runs/checkpoints/stdlib-lm
    """
    from keepstep.cli.progress import Bar
    from keepstep.errors import ConfigError
    from keepstep.ops.mirror.pull import pull
    from keepstep.ops.place import address_of

    if step and take_all:
        raise ConfigError("--step and --all do not go together")
    source, target = address_of(address, to_write=False), folder_of(folder, "give a folder of this machine to copy to")
    with Bar("copying") as bar:
        done = pull(source, target, steps=step or (), take_all=take_all, watch=bar)
    for warning in done.warnings:
        print(f"keepstep: {warning}", file=sys.stderr)
    if as_json:
        print_json(done)
        return
    for one in done.pulled:
        word = "copied" if one.is_new else "there already"
        print(f"{one.path}: {word}, {human_size(one.size)}")
        if one.replaced:
            print(f"  a damaged copy had its place; it lies in {one.replaced} now")
