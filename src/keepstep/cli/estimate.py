"""`keepstep estimate`: how large checkpoints will be, and how long they take."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from keepstep.cli.estimate_asked import Model, find_model, ranks_of, rates_of, recipe_of, refuse, world_of
from keepstep.cli.estimate_text import print_estimate
from keepstep.cli.output import print_json
from keepstep.cli.train import Overrides
from keepstep.errors import ConfigError

if TYPE_CHECKING:
    from keepstep.plan.estimate import Estimate, Rates

_MOST = 100_000_000
Dtype = Literal["fp32", "bf16", "fp16", "fp8"]
Optimizer = Literal["adamw", "adamw-8bit", "adafactor", "lion", "sgd", "sgd-momentum", "none"]


def command(
    source: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL|JOB.yaml|FOLDER",
            help="A model's config.json or its folder, a job, or a checkpoint or run that is there.",
        ),
    ] = None,
    parameters: Annotated[
        str | None, typer.Option("--parameters", help="Instead of a model: how many, such as 8B or 42M.")
    ] = None,
    overrides: Overrides = None,
    dtype: Annotated[
        Dtype | None, typer.Option("--dtype", help="Of the weights. [default: what config.json says, else fp32]")
    ] = None,
    optimizer: Annotated[Optimizer | None, typer.Option("--optimizer", help="[default: adamw]")] = None,
    optimizer_dtype: Annotated[
        Literal["fp32", "bf16", "fp16", "fp8", "same"] | None,
        typer.Option("--optimizer-dtype", help="Of its moments, or same: that of the weights. [default: fp32]"),
    ] = None,
    master_weights: Annotated[
        bool, typer.Option("--master-weights", help="A copy of the trained weights in fp32.")
    ] = False,
    lora_rank: Annotated[
        int | None,
        typer.Option("--lora-rank", min=1, max=_MOST, help="Train LoRA adapters of this rank; the model is frozen."),
    ] = None,
    lora_targets: Annotated[
        str | None,
        typer.Option("--lora-targets", help="What they adapt, such as q_proj,v_proj. [default: all-linear]"),
    ] = None,
    adapter_dtype: Annotated[
        Dtype | None, typer.Option("--adapter-dtype", help="Of the adapters. [default: fp32, as PEFT has them]")
    ] = None,
    trainable: Annotated[
        str | None, typer.Option("--trainable", help="So many parameters are trained; the others are frozen.")
    ] = None,
    with_frozen: Annotated[bool, typer.Option("--with-frozen", help="Checkpoints hold frozen weights too.")] = False,
    world: Annotated[
        int | None, typer.Option("--world", min=1, max=_MOST, help="Ranks, which shard the state.")
    ] = None,
    replicate: Annotated[
        int | None, typer.Option("--replicate", min=1, help="Replicas among them that hold the same shards.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, max=_MOST, help="Checkpoints that remain (num_to_keep).")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Measure the speed of this disk, with 256 MiB.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option("--bandwidth", help="Of the storage, such as 2GB/s or 10Gbit/s, for all ranks.")
    ] = None,
    per_rank: Annotated[
        bool, typer.Option("--bandwidth-per-rank", help="Each rank has the bandwidth for itself.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how large checkpoints will be, before anything is trained, and how long a save and a resume take.

    Example: keepstep estimate Llama-3.1-8B/config.json --lora-rank 16 --world 8 --keep 3 --bandwidth 2GB/s
    """
    told = {
        "dtype": dtype,
        "optimizer": optimizer,
        "optimizer_dtype": optimizer_dtype,
        "master_weights": master_weights or None,
        "lora_rank": lora_rank,
        "lora_targets": lora_targets,
        "adapter_dtype": adapter_dtype,
        "trainable": trainable,
        "with_frozen": with_frozen or None,
        "world": world,
        "replicate": replicate,
        "set": overrides or None,
    }
    given = {name: value for name, value in told.items() if value is not None}
    is_job = source is not None and parameters is None and source.suffix in (".yaml", ".yml")
    model = None if is_job else find_model(source, parameters)
    if is_job:
        refuse(given, ("world", "set"), "the job says that itself (--set changes it)")
    elif model is None:
        refuse(given, (), "what is there has its size; these are for a model, or a job")
    else:
        refuse(given, tuple(told)[:-1], "needs a job")
    # After what is refused at once: a measurement takes seconds.
    rates, free = rates_of(folder, bandwidth, per_rank=per_rank)
    if model is not None:
        found = _of_a_model(model, given, keep, rates)
    else:
        assert source is not None
        found = _of_a_job(source, given, keep, rates) if is_job else _of_what_is_there(source, keep, rates)
    found = replace(found, free=free)
    if as_json:
        print_json(found)
    else:
        print_estimate(found)


def _of_a_model(model: Model, given: dict[str, Any], keep: int | None, rates: "Rates | None") -> "Estimate":
    from keepstep.plan.estimate import estimate, retention
    from keepstep.plan.model_size import ModelSizeError
    from keepstep.plan.training_size import assumptions, content_of

    recipe, ranks = recipe_of(given, model), ranks_of(given.get("world", 1), given.get("replicate", 1))
    try:
        content = content_of(model.weights, recipe)
    except ModelSizeError as error:
        raise ConfigError(f"{model.name}: {error}") from None
    return estimate(model.name, content, ranks, retention(keep), rates, assumptions(recipe))


def _of_a_job(path: Path, given: dict[str, Any], keep: int | None, rates: "Rates | None") -> "Estimate":
    sys.dont_write_bytecode = True  # not even beside the providers
    from keepstep.config.load import load_job
    from keepstep.job.estimate import look_at_job
    from keepstep.job.providers import make_importable
    from keepstep.plan.estimate import estimate

    config = load_job(path, given.get("set", []))
    make_importable(path)
    job = look_at_job(config, given.get("world") or world_of(os.environ), keep)
    found = estimate(str(path), job.content, job.ranks, job.kept, rates, job.assumptions)
    return replace(found, notes=job.notes)


def _of_what_is_there(path: Path, keep: int | None, rates: "Rates | None") -> "Estimate":
    from keepstep.ops.estimate import estimate_checkpoint
    from keepstep.plan.estimate import complete, retention

    return complete(estimate_checkpoint(path), retention(keep), rates)
