"""`keepstep push`: checkpoints of a folder to a mirror."""

import sys
from typing import Annotated

import typer

from keepstep.cli.output import human_size, print_json
from keepstep.cli.places import folder_of


def command(
    folder: Annotated[str, typer.Argument(help="A run's folder, or one checkpoint in it.")],
    address: Annotated[str, typer.Argument(help="Of the mirror; the name of the run's folder is put behind it.")],
    step: Annotated[
        list[int] | None, typer.Option("--step", min=0, help="Which; may be given several times. Without: all.")
    ] = None,
    name: Annotated[str | None, typer.Option("--as", metavar="NAME", help="What the run is called there.")] = None,
    no_name: Annotated[
        bool, typer.Option("--no-name", help="Right below the address, as of a job without a run name.")
    ] = False,
    max_mib_per_second: Annotated[
        float | None, typer.Option("--max-mib-per-second", min=0.001, help="The most that is sent.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy the checkpoints of a folder to a mirror that are not there yet, as checkpointing.mirror of a job does.

    Example: keepstep push runs/checkpoints/stdlib-lm s3://bucket/runs
    """
    from keepstep.cli.progress import Bar
    from keepstep.errors import ConfigError
    from keepstep.ops.mirror.push import push
    from keepstep.ops.place import address_of

    if name is not None and (no_name or not name):
        raise ConfigError("--as needs a name, and does not go together with --no-name")
    source = folder_of(folder, "give a folder of this machine; keepstep pull copies from a mirror to one")
    with Bar("copying") as bar:
        done = push(
            source,
            address_of(address, to_write=True),
            steps=step or (),
            name="" if no_name else name,
            mib_per_second=max_mib_per_second,
            watch=bar,
        )
    for warning in done.warnings:
        print(f"keepstep: {warning}", file=sys.stderr)
    if as_json:
        print_json(done)
        return
    for one in done.pushed:
        print(f"{one.address}: {'copied' if one.is_new else 'there already'}, {human_size(one.size)}")
