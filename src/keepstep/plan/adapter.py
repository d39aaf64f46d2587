"""Names of adapters: in a model, in PEFT's files, and of the weights that they change. No tensor is touched."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_SAVED = "modules_to_save"
_BASE = "base_model.model."
_FACTORS = re.compile(r"(?P<module>.+)\.(?P<part>lora_(?:embedding_)?[AB]|lora_magnitude_vector)")


class AdapterError(ValueError):
    """A checkpoint does not hold such an adapter, or one that cannot be written in this form."""


def peft_names(names: Collection[str], adapter: str, *, with_bias: bool) -> dict[str, str]:
    """Names of an adapter's tensors in `adapter_model.safetensors`, by their names in the model.

    Args:
        names: of the model's tensors that a checkpoint holds.
        adapter: the adapter's name; what belongs to others is left out.
        with_bias: whether biases of adapted layers are part of it.

    Raises:
        AdapterError: nothing belongs to it, or something belongs to no adapter.
    """
    found: dict[str, str] = {}
    others: list[str] = []
    for name in sorted(names):
        parts = name.split(".")
        place = next((i for i, part in enumerate(parts) if part == _SAVED or part.startswith("lora_")), None)
        if place is None or place + 1 == len(parts):
            if with_bias and parts[-1] == "bias":
                found[name] = name
            else:
                others.append(name)
        elif parts[place + 1] == adapter:
            found[name] = _peft_name(parts, place)
    if not any(name != target for name, target in found.items()):
        raise AdapterError(f"there is no tensor of an adapter {adapter!r}")
    if others:
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        raise AdapterError(f"{', '.join(others[:3])}{more}: trained, and part of no adapter; export the whole model")
    return found


def adapters_in(names: Collection[str]) -> list[str]:
    """Names of the adapters that tensors with these names belong to."""
    found = set()
    for name in names:
        parts = name.split(".")
        found |= {b for a, b in pairwise(parts) if a == _SAVED or a.startswith("lora_")}
    return sorted(found)


def _peft_name(parts: Sequence[str], place: int) -> str:
    before, marker, after = parts[:place], parts[place], parts[place + 2 :]
    if marker == _SAVED:
        return ".".join([*before, *after])
    if marker == "lora_magnitude_vector":
        after = []  # PEFT keeps it as a plain tensor
    return ".".join([*before, marker, *after])


@dataclass(frozen=True)
class Delta:
    """What an adapter adds to one weight of the base: `scaling * B @ A`, transposed where the layer is.

    Attributes:
        a, b: names of the factors, of shapes (r, in) and (out, r).
        scaling: the factor.
        transposed: whether the weight lies as (in, out), as that of an embedding does.
    """

    a: str
    b: str
    scaling: float
    transposed: bool


@dataclass(frozen=True)
class Merge:
    """How base weights and an adapter make full weights, all by their names in the base.

    Attributes:
        deltas: what is added to a weight.
        replaced: tensors that take the place of the base's, by the adapter's name for them.
    """

    deltas: Mapping[str, Delta]
    replaced: Mapping[str, str]


def plan_merge(names: Collection[str], config: Mapping[str, Any], ranks: Mapping[str, int]) -> Merge:
    """How an adapter is merged. The rule is PEFT's: `lora_alpha / r`, or `lora_alpha / sqrt(r)` with `use_rslora`.

    Args:
        names: in `adapter_model.safetensors`.
        config: `adapter_config.json`.
        ranks: r of each `lora_A`, by its name.

    Raises:
        AdapterError: a kind of adapter that is not known here.
    """
    if config.get("use_dora") or config.get("peft_type", "LORA") != "LORA":
        raise AdapterError(
            f"{config.get('peft_type')} with use_dora={bool(config.get('use_dora'))} cannot be merged here"
        )
    deltas: dict[str, Delta] = {}
    replaced: dict[str, str] = {}
    for name in sorted(names):
        found = _FACTORS.fullmatch(name.removesuffix(".weight"))
        if found is None:
            replaced[base_name(name)] = name
        elif found["part"].endswith("A"):
            is_embedding = "embedding" in found["part"]
            other = name.replace(found["part"], found["part"][:-1] + "B")
            if other not in names:
                raise AdapterError(f"{name} has no {other}")
            transposed = is_embedding or bool(config.get("fan_in_fan_out"))
            scaling = _scaling(config, found["module"], ranks[name])
            deltas[f"{base_name(found['module'])}.weight"] = Delta(name, other, scaling, transposed)
    return Merge(deltas, replaced)


def base_name(name: str) -> str:
    """A name in the base model for one in the wrapped model."""
    return name.removeprefix(_BASE).replace(".base_layer.", ".")


def _scaling(config: Mapping[str, Any], module: str, rank: int) -> float:
    patterns = config.get("alpha_pattern") or {}
    key = next((key for key in patterns if re.match(rf"(.*\.)?({key})$", module.removeprefix(_BASE))), None)
    alpha = patterns[key] if key is not None else config["lora_alpha"]
    return float(alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank)
