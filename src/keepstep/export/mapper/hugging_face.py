"""Chooses a family's mapper from the `config.json` of a Hugging Face model."""

from collections.abc import Mapping
from typing import Any, Literal

from keepstep.config.mapper import RotaryLayout
from keepstep.errors import ConfigError
from keepstep.export.mapper.families import llama, qwen3_moe
from keepstep.export.mapper.mapper import Mapper

FAMILIES = ("llama", "mistral", "qwen3_moe")


def mapper_for(
    config: Mapping[str, Any],
    *,
    rotary: RotaryLayout = "half_split",
    source: Literal["files", "module"] = "files",
) -> Mapper:
    """The mapper from Hugging Face's names to ours, for a model with this configuration.

    Args:
        config: what `config.json` holds; defaults of the family stand for what it leaves out.
        rotary: the layout of ours.
        source: see `keepstep.export.mapper.families.qwen3_moe`.

    Raises:
        ConfigError: the family is unknown, or a number is missing or is none.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ConfigError(f"model_type = {family!r}: there is no mapper for it; known are {', '.join(FAMILIES)}")
    heads, layers = _count(config, "num_attention_heads"), _count(config, "num_hidden_layers")
    kv_heads = _count(config, "num_key_value_heads", heads)
    head_dim = _count(config, "head_dim", _count(config, "hidden_size") // heads)
    tied = bool(config.get("tie_word_embeddings", False))
    attention_bias = bool(config.get("attention_bias", False))
    if family != "qwen3_moe":
        return llama(
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            tied=tied,
            attention_bias=attention_bias,
            mlp_bias=bool(config.get("mlp_bias", False)),
            rotary=rotary,
        )
    # transformers 5 writes the number of experts under another name than files from before it have.
    experts = "num_local_experts" if "num_local_experts" in config else "num_experts"
    period, dense = _count(config, "decoder_sparse_step", 1), set(config.get("mlp_only_layers") or ())
    return qwen3_moe(
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        experts=_count(config, experts),
        dense_layers=[layer for layer in range(layers) if layer in dense or (layer + 1) % period],
        tied=tied,
        attention_bias=attention_bias,
        rotary=rotary,
        source=source,
    )


def _count(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not int or value < 1:
        problem = "missing" if value is None else f"{value!r} is no count"
        raise ConfigError(f"{config['model_type']}: {key} in the model's configuration: {problem}")
    return value
