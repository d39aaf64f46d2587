"""`keepstep export`: the weights of a checkpoint as safetensors, as an adapter, or as one file of torch.save."""

from dataclasses import asdict
from enum import StrEnum
from functools import partial as partial_call
from pathlib import Path
from typing import Annotated

import typer

from keepstep.cli.output import human_size, print_json


class FormChoice(StrEnum):
    """What `--to` takes."""

    safetensors = "safetensors"
    peft = "peft"
    torch = "torch"


class DtypeChoice(StrEnum):
    """What `--dtype` takes."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"


def command(
    checkpoint: Annotated[Path, typer.Argument(metavar="CKPT", help="A save-<step> or checkpoint-<step> folder.")],
    out: Annotated[Path, typer.Argument(help="The folder (or file) to make, or that of an earlier export.")],
    max_shard_size: Annotated[
        str, typer.Option("--max-shard-size", help="Write several files where one would be larger: 5GB, 500MB, ...")
    ] = "5GB",
    dtype: Annotated[DtypeChoice | None, typer.Option("--dtype", help="Cast floats of 16 bits and more.")] = None,
    weights: Annotated[
        str, typer.Option("--weights", metavar="PREFIX", help="Which set of weights: model, task.ema, ...")
    ] = "model",
    ema: Annotated[
        str | None, typer.Option("--ema", metavar="NAME", help="The averaged weights that the task keeps as NAME.")
    ] = None,
    beside: Annotated[
        Path | None, typer.Option("--with", metavar="FOLDER", help="Copy configuration and tokenizer from here.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--source", help="Base weights, for a checkpoint of trainable parameters only.")
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Export such a checkpoint without base weights.")] = False,
    to: Annotated[
        FormChoice,
        typer.Option("--to", help="safetensors; peft: an adapter in PEFT's own layout; torch: one torch.save file."),
    ] = FormChoice.safetensors,
    mapper: Annotated[
        str | None,
        typer.Option(
            "--mapper", metavar="FILE", help="A YAML file with steps from the checkpoint's names to the files'."
        ),
    ] = None,
    adapter: Annotated[
        str | None, typer.Option("--adapter", metavar="NAME", help="Which adapter, where the checkpoint has several.")
    ] = None,
    merge_base: Annotated[
        Path | None, typer.Option("--merge-base", metavar="BASE", help="Put the adapter into these base weights.")
    ] = None,
    without_tokenizer: Annotated[
        bool, typer.Option("--without-tokenizer", help="Export an adapter without its tokenizer beside it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write the weights of a checkpoint as safetensors, in the layout of Hugging Face.

    Example: keepstep export runs/checkpoints/stdlib-lm/save-400 out --dtype bfloat16
    """
    if to is FormChoice.safetensors and merge_base is None and _holds_only_an_adapter(checkpoint):
        _refuse_beside_an_adapter({"--dtype": dtype, "--mapper": mapper, "--source": source, "--ema": ema})
        to = FormChoice.peft
    if to is FormChoice.peft:
        _export_adapter(checkpoint, out, adapter, beside, without_tokenizer=without_tokenizer, as_json=as_json)
        return
    from keepstep.cli.progress import Bar
    from keepstep.errors import ConfigError
    from keepstep.plan.weight_files import SizeError, parse_size

    try:
        most = parse_size(max_shard_size)
    except SizeError as error:
        raise ConfigError(f"--max-shard-size: {error}") from None
    if to is FormChoice.torch and beside is not None:
        raise ConfigError("--with: one file of torch.save has no room for other files; copy them, or use safetensors")

    from keepstep.export.mapper import Mapper
    from keepstep.export.torch_file import export_torch
    from keepstep.export.weights import export_weights

    with Bar("exporting") as bar:
        one_file = to is FormChoice.torch
        write = export_torch if one_file else partial_call(export_weights, max_shard_size=most, side_files=beside)
        done = write(
            checkpoint,
            out,
            source if merge_base is None else merge_base,
            weights=weights,
            dtype=None if dtype is None else dtype.value,
            partial=partial,
            mapper=None if mapper is None else Mapper.from_yaml(mapper),
            named=ema,
            merge=merge_base is not None,
            adapter=adapter,
            watch=bar,
        )
    if as_json:
        print_json(done)
        return
    size = human_size(sum(file.size for file in done.files.values()))
    files = "1 file" if len(done.files) == 1 else f"{len(done.files)} files"
    run = f" of {done.run}" if done.run else ""
    print(f"exported step {done.step}{run} to {out}: {done.tensors} tensors, {files}, {size}")
    how = "and shares its memory" if to is FormChoice.torch else "which is written once"
    for name, kept in sorted(done.tied.items()):
        print(f"{name} is tied to {kept}, {how}")


def _holds_only_an_adapter(checkpoint: Path) -> bool:
    from keepstep.plan import layout

    if layout.naming_of(checkpoint.name) is not layout.TRAINER:
        return False
    from keepstep.export.trainer_checkpoint import holds_only_an_adapter

    return holds_only_an_adapter(checkpoint)


def _refuse_beside_an_adapter(options: dict[str, object]) -> None:
    """An adapter is copied as it was trained."""
    from keepstep.errors import ConfigError

    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ConfigError(
            f"{', '.join(given)}: the checkpoint holds an adapter, which is copied as it is; --merge-base BASE takes "
            "them, and writes whole weights"
        )


def _export_adapter(
    checkpoint: Path, out: Path, adapter: str | None, beside: Path | None, *, without_tokenizer: bool, as_json: bool
) -> None:
    from keepstep.export.adapter import export_adapter

    files = export_adapter(checkpoint, out, adapter=adapter, tokenizer=beside, without_tokenizer=without_tokenizer)
    if as_json:
        print_json({name: asdict(file) for name, file in files.items()})
        return
    size = human_size(sum(file.size for file in files.values()))
    print(f"exported the adapter of {checkpoint} to {out}: {', '.join(files)} ({size})")
