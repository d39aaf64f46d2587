"""`keepstep convert`: a checkpoint out of weights that others wrote."""

from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import human_size, print_json, printable


def command(
    source: Annotated[
        Path, typer.Argument(help="A torch.save file, a plain DCP folder, or a safetensors file or folder.")
    ],
    out: Annotated[Path, typer.Argument(help="The run's folder, or the save-<step> in it that is to be made.")],
    step: Annotated[int | None, typer.Option("--step", help="Steps that the checkpoint counts; by default 0.")] = None,
    weights: Annotated[
        str | None,
        typer.Option("--weights", metavar="PREFIX", help="Where in SOURCE the state dict is: ema.model, ..."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a checkpoint of weights that something else wrote. Nothing in SOURCE is run, and nothing of OUT replaced.

    Example: keepstep convert pytorch_model.bin runs/checkpoints/imported --step 1000
    """
    from keepstep.job.convert import convert

    done = convert(source, out, step=step, weights=weights)
    if as_json:
        print_json(done)
        return
    print(f"converted {source} ({done.form}) to {done.checkpoint}: {done.tensors} tensors, {human_size(done.size)}")
    if done.left_out:
        shown = ", ".join(printable(name) for name in done.left_out[:5])
        more = f" and {len(done.left_out) - 5} more" if len(done.left_out) > 5 else ""
        print(f"left out: {shown}{more}")
