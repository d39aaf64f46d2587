"""What the options of `keepstep estimate` mean together."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keepstep.errors import ConfigError

if TYPE_CHECKING:
    from keepstep.plan.estimate import Ranks, Rates
    from keepstep.plan.model_size import Weight
    from keepstep.plan.training_size import Recipe

# What a model's configuration calls the dtypes that are offered.
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}


@dataclass(frozen=True)
class Model:
    """A model by its parameters: what it is called, and the dtype that its configuration names, if it does.

    `quantized`: how its weights are quantized, in words; empty where they are not.
    """

    name: str
    weights: "tuple[Weight, ...]"
    dtype: str | None = None
    quantized: str = ""


def refuse(given: Mapping[str, Any], allowed: tuple[str, ...], what: str) -> None:
    """Raise ConfigError where options are given that say what something else says already."""
    extra = [f"--{name.replace('_', '-')}" for name in given if name not in allowed]
    if extra:
        raise ConfigError(f"{', '.join(extra)}: {what}")


def find_model(source: Path | None, parameters: str | None) -> Model | None:
    """The model that is meant; None where the path is none.

    Raises:
        ConfigError: neither or both are given, or the model's size cannot be told.
    """
    from keepstep.ops.estimate import has_checkpoint, model_config
    from keepstep.plan.model_families import quantization_of, weights_of
    from keepstep.plan.model_size import ModelSizeError, lump
    from keepstep.plan.quantities import QuantityError, parse_count

    if (source is None) == (parameters is None):
        raise ConfigError("give a model's config.json, a job's YAML file, a run's folder, or --parameters: one of them")
    if parameters is not None:
        try:
            return Model(f"--parameters {parameters}", lump(parse_count(parameters)))
        except QuantityError as error:
            raise ConfigError(f"--parameters: {error}") from None
    assert source is not None
    config = None if has_checkpoint(source) else model_config(source)
    if config is None:
        return None
    try:
        weights = weights_of(config)
    except ModelSizeError as error:
        raise ConfigError(f"{source}: {error}") from None
    if weights is None:
        from keepstep.job.meta_model import weights_by_transformers

        weights = weights_by_transformers(config, str(source))
    told = config.get("dtype") or config.get("torch_dtype")
    return Model(str(source), weights, _DTYPES.get(str(told).removeprefix("torch.")), quantization_of(config))


def recipe_of(given: Mapping[str, Any], model: Model) -> "Recipe":
    """How the model is trained. Raises ConfigError."""
    from keepstep.plan.quantities import QuantityError, parse_count
    from keepstep.plan.training_size import Recipe

    if "lora_rank" not in given:
        refuse({name: None for name in given if name in ("lora_targets", "adapter_dtype")}, (), "needs --lora-rank")
    _refuse_contradictions(given, model)
    known = Recipe(dtype=model.dtype or "fp32")
    targets = str(given.get("lora_targets", "")).split(",") if "lora_targets" in given else known.targets
    try:
        trainable = parse_count(given["trainable"]) if "trainable" in given else None
    except QuantityError as error:
        raise ConfigError(f"--trainable: {error}") from None
    return Recipe(
        given.get("dtype", known.dtype),
        given.get("optimizer", known.optimizer),
        given.get("optimizer_dtype", known.optimizer_dtype),
        "master_weights" in given,
        given.get("lora_rank"),
        tuple(target.strip() for target in targets),
        given.get("adapter_dtype", known.adapter_dtype),
        trainable,
        "with_frozen" in given,
    )


def _refuse_contradictions(given: Mapping[str, Any], model: Model) -> None:
    optimizer = given.get("optimizer")
    if optimizer in ("none", "sgd", "adamw-8bit") and "optimizer_dtype" in given:
        what = "keeps its moments in 8 bits" if optimizer == "adamw-8bit" else "keeps no moments"
        raise ConfigError(f"--optimizer-dtype: --optimizer {optimizer} {what}: leave one of the two out")
    if not all(target.strip() for target in str(given.get("lora_targets", "all-linear")).split(",")):
        raise ConfigError("--lora-targets: a name is empty; write q_proj,v_proj, or leave the option out")
    has_adapter_alone = "lora_rank" in given and "with_frozen" not in given
    if model.quantized and not has_adapter_alone and "dtype" not in given:
        raise ConfigError(
            f"{model.name}: its weights are quantized ({model.quantized}), which is not counted; give --dtype for what "
            "checkpoints hold them in, or --lora-rank for adapters alone"
        )


def world_of(environment: Mapping[str, str]) -> int:
    """How many ranks a launcher has said. Raises ConfigError."""
    told = environment.get("WORLD_SIZE", "1")
    if not (told.isascii() and told.isdecimal() and 0 < len(told) < 9 and int(told)):
        raise ConfigError(
            f"WORLD_SIZE is {told!r} in the environment, and no number of ranks; unset it, or give --world"
        )
    return int(told)


def ranks_of(world: int, replicate: int) -> "Ranks":
    """How ranks are arranged. Raises ConfigError."""
    from keepstep.plan.estimate import Ranks

    if world % replicate:
        raise ConfigError(f"--replicate {replicate}: the {world} ranks of --world are no multiple of it")
    return Ranks(world // replicate, replicate)


def rates_of(folder: Path | None, bandwidth: str | None, *, per_rank: bool) -> "tuple[Rates | None, int | None]":
    """How fast the storage is, and bytes that are free there.

    Raises:
        ConfigError: the options contradict each other.
        CouldNotLookError: the folder's speed cannot be measured.
    """
    from keepstep.plan.estimate import Rates
    from keepstep.plan.quantities import QuantityError, parse_rate

    if folder is not None and bandwidth is not None:
        raise ConfigError("--folder measures the bandwidth that --bandwidth gives: take one of them")
    if per_rank and bandwidth is None:
        raise ConfigError("--bandwidth-per-rank needs --bandwidth")
    if folder is not None:
        from keepstep.ops.estimate import measure_rates

        return measure_rates(folder)
    if bandwidth is None:
        return None, None
    try:
        rate = parse_rate(bandwidth)
    except QuantityError as error:
        raise ConfigError(f"--bandwidth: {error}") from None
    return Rates(rate, rate, per_rank), None
