"""`keepstep outputs push`: committed parts to an address."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import human_size, print_json


def command(
    folder: Annotated[Path, typer.Argument(help="The folder of `outputs.to`.")],
    address: Annotated[str, typer.Argument(help="Where the parts go: s3://bucket/rows, file:///mnt/rows, ...")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Copy the committed parts that are not there yet, also while the job runs; _SUCCESS.json comes last.

    Example: keepstep outputs push runs/rows s3://bucket/rows
    """
    from keepstep.cli.progress import Bar
    from keepstep.ops.outputs.push import push
    from keepstep.ops.place import address_of

    with Bar("copying") as bar:
        done = push(folder, address_of(address, to_write=True), bar)
    if as_json:
        print_json(done)
        return
    state = "the job has ended, and all is there" if done.complete else "the job has not ended"
    print(f"{done.address}: {done.parts} parts copied, {human_size(done.bytes)}; {state}")
