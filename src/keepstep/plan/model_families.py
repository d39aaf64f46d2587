"""Shapes of the parameters of well-known model families, from the fields of a Hugging Face `config.json`.

The names and shapes are those of transformers 5; the tests compare every family with the model that it builds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from keepstep.plan.model_size import ModelSizeError, Weight, linear

Config = Mapping[str, Any]

# Of a model that anybody will train. Layers are counted one by one, and transformers makes each of them.
_MOST, _MOST_LAYERS = 10**9, 100_000
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


@dataclass(frozen=True)
class _Decoder:
    """What differs between the families that are built as Llama is.

    Attributes:
        attention_bias, mlp_bias: a field of that name says whether these layers have biases; else they have none.
        qkv_bias: queries, keys and values have some in any case, unless a field of that name denies it.
        qk_norm: queries and keys are normalized for each head.
        norms: in each layer.
        ties: whether the output takes the embedding's matrix where the field is missing.
        head_dim, kv_heads: where the field is missing; None: what the number of heads gives.
        experts: whether layers are made of such.
    """

    attention_bias: bool = False
    mlp_bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    norms: int = 2
    ties: bool = False
    head_dim: int | None = None
    kv_heads: int | None = None
    experts: bool = False


_DECODERS = {
    "llama": _Decoder(attention_bias=True, mlp_bias=True),
    "mistral": _Decoder(kv_heads=8),
    "mixtral": _Decoder(kv_heads=8, experts=True),
    "qwen2": _Decoder(qkv_bias=True, kv_heads=32),
    "qwen2_moe": _Decoder(qkv_bias=True, kv_heads=16, experts=True),
    "qwen3": _Decoder(attention_bias=True, qk_norm=True, head_dim=128, kv_heads=32),
    "qwen3_moe": _Decoder(attention_bias=True, qk_norm=True, kv_heads=4, experts=True),
    "gemma": _Decoder(attention_bias=True, ties=True, head_dim=256, kv_heads=16),
    "gemma2": _Decoder(attention_bias=True, norms=4, ties=True, head_dim=256, kv_heads=4),
    "gemma3_text": _Decoder(attention_bias=True, qk_norm=True, norms=4, ties=True, head_dim=256, kv_heads=4),
}


def weights_of(config: Config) -> tuple[Weight, ...] | None:
    """The parameters of the model that a configuration describes; None where its family is not known here.

    Raises:
        ModelSizeError: a field is missing or no number.
    """
    kind, is_plain = config.get("model_type"), _is_plain(config)
    for field in _LAYERS:
        if type(config.get(field)) is int:
            _number(config, field)
    if not isinstance(kind, str) or not is_plain:
        return None
    if kind in _DECODERS:
        return tuple(_decoder(config, _DECODERS[kind]))
    build = _OTHERS.get(kind)
    return None if build is None else tuple(build(config))


def _is_plain(config: Config) -> bool:
    """Whether it is the language model of its family, and not a classifier, say, on top of one."""
    told = config.get("architectures") or ["ForCausalLM"]
    if not isinstance(told, list):
        raise ModelSizeError(
            f"architectures is {_short(told)} in the model's configuration, which must be a list of names"
        )
    return all(str(name).endswith(("ForCausalLM", "LMHeadModel", "ForMaskedLM")) for name in told)


def _number(config: Config, field: str, default: int | None = None) -> int:
    value = config.get(field)
    value = default if value is None else value
    if type(value) is not int or value < 0:
        raise ModelSizeError(f"{field} is {_short(value)} in the model's configuration, which must be a whole number")
    if value > (most := _MOST_LAYERS if field in _LAYERS else _MOST):
        raise ModelSizeError(f"{field} is {_short(value)} in the model's configuration, where {most:,} is the most")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def quantization_of(config: Config) -> str:
    """How the weights of a model are quantized, in words; empty where they are not."""
    told = config.get("quantization_config")
    if not told:
        return ""
    fields = told if isinstance(told, Mapping) else {}
    names = [str(fields["quant_method"])] if "quant_method" in fields else []
    names += [str(name) for name, value in fields.items() if str(name).startswith("load_in_") and value is True]
    return _short(", ".join(names))[1:-1] or "quantization_config"


def _decoder(config: Config, family: _Decoder) -> list[Weight]:
    hidden, layers = _number(config, "hidden_size"), _number(config, "num_hidden_layers")
    heads = _number(config, "num_attention_heads")
    # Configurations of the first Llamas do not have the field: each head had its own keys then.
    kv_heads = _number(config, "num_key_value_heads", family.kv_heads or heads)
    width = _number(config, "head_dim", family.head_dim or hidden // max(1, heads))
    biased = family.attention_bias and bool(config.get("attention_bias"))
    qkv_biased = biased or (family.qkv_bias and bool(config.get("qkv_bias", True)))
    return [
        *_ends(config, hidden, ties=family.ties),
        *linear("self_attn.q_proj", hidden, heads * width, layers, bias=qkv_biased),
        *linear("self_attn.k_proj", hidden, kv_heads * width, layers, bias=qkv_biased),
        *linear("self_attn.v_proj", hidden, kv_heads * width, layers, bias=qkv_biased),
        *linear("self_attn.o_proj", heads * width, hidden, layers, bias=biased),
        *([Weight("self_attn.norm", (width,), 2 * layers)] if family.qk_norm else []),
        Weight("norm", (hidden,), family.norms * layers + 1),
        *_feed_forward(config, family, hidden, layers),
    ]


def _ends(config: Config, hidden: int, *, ties: bool, embedding: str = "embed_tokens") -> list[Weight]:
    """The embedding, and the output's matrix where it has one of its own."""
    words = _number(config, "vocab_size")
    tied = config.get("tie_word_embeddings")
    head = [] if (ties if tied is None else tied) else linear("lm_head", hidden, words, 1)
    return [Weight(embedding, (words, hidden)), *head]


def _feed_forward(config: Config, family: _Decoder, hidden: int, layers: int) -> list[Weight]:
    inner = _number(config, "intermediate_size")
    if not family.experts:
        return _gated("mlp", hidden, inner, layers, bias=family.mlp_bias and bool(config.get("mlp_bias")))
    # transformers 5 writes for some families the one name where the hub has the other.
    experts = _number(config, "num_local_experts" if "num_experts" not in config else "num_experts")
    sparse = _sparse_layers(config, layers) if experts else 0
    each = _number(config, "moe_intermediate_size", inner)
    found = [
        Weight("mlp.gate", (experts, hidden), sparse),
        Weight("mlp.experts", (experts, 2 * each, hidden), sparse),
        Weight("mlp.experts", (experts, hidden, each), sparse),
    ]
    if "shared_expert_intermediate_size" in config:
        shared = _number(config, "shared_expert_intermediate_size")
        found += _gated("mlp.shared_expert", hidden, shared, sparse)
        found += linear("mlp.shared_expert_gate", hidden, 1, sparse)
    if sparse < layers:
        found += _gated("mlp", hidden, inner, layers - sparse)
    return [weight for weight in found if weight.count]


def _sparse_layers(config: Config, layers: int) -> int:
    """Layers that are made of experts: every `decoder_sparse_step`-th but for those that are named."""
    dense, step = config.get("mlp_only_layers") or [], _number(config, "decoder_sparse_step", 1)
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise ModelSizeError(f"mlp_only_layers is {_short(dense)} in the model's configuration, which must list layers")
    dense = frozenset(dense)
    return sum(layer not in dense and (layer + 1) % max(1, step) == 0 for layer in range(layers))


def _gated(where: str, hidden: int, inner: int, layers: int, *, bias: bool = False) -> list[Weight]:
    return [
        *linear(f"{where}.gate_proj", hidden, inner, layers, bias=bias),
        *linear(f"{where}.up_proj", hidden, inner, layers, bias=bias),
        *linear(f"{where}.down_proj", inner, hidden, layers, bias=bias),
    ]


def _gpt2(config: Config) -> list[Weight]:
    hidden, layers = _number(config, "n_embd"), _number(config, "n_layer")
    inner = _number(config, "n_inner", 4 * hidden)
    return [
        *_ends(config, hidden, ties=True, embedding="wte"),
        Weight("wpe", (_number(config, "n_positions", 1024), hidden)),
        *linear("attn.c_attn", hidden, 3 * hidden, layers, bias=True),
        *linear("attn.c_proj", hidden, hidden, layers, bias=True),
        *linear("mlp.c_fc", hidden, inner, layers, bias=True),
        *linear("mlp.c_proj", inner, hidden, layers, bias=True),
        Weight("ln", (hidden,), 2 * (2 * layers + 1)),
    ]


def _gpt_neox(config: Config) -> list[Weight]:
    hidden, layers = _number(config, "hidden_size"), _number(config, "num_hidden_layers")
    inner, biased = _number(config, "intermediate_size"), config.get("attention_bias", True)
    return [
        *_ends(config, hidden, ties=False, embedding="embed_in"),
        *linear("attention.query_key_value", hidden, 3 * hidden, layers, bias=biased),
        *linear("attention.dense", hidden, hidden, layers, bias=biased),
        *linear("mlp.dense_h_to_4h", hidden, inner, layers, bias=True),
        *linear("mlp.dense_4h_to_h", inner, hidden, layers, bias=True),
        Weight("layernorm", (hidden,), 2 * (2 * layers + 1)),
    ]


def _bert(config: Config) -> list[Weight]:
    hidden, layers = _number(config, "hidden_size"), _number(config, "num_hidden_layers")
    inner, words = _number(config, "intermediate_size"), _number(config, "vocab_size")
    names = ("self.query", "self.key", "self.value", "output.dense")
    return [
        Weight("word_embeddings", (words, hidden)),
        Weight("position_embeddings", (_number(config, "max_position_embeddings", 512), hidden)),
        Weight("token_type_embeddings", (_number(config, "type_vocab_size", 2), hidden)),
        *(weight for name in names for weight in linear(f"attention.{name}", hidden, hidden, layers, bias=True)),
        *linear("intermediate.dense", hidden, inner, layers, bias=True),
        *linear("output.dense", inner, hidden, layers, bias=True),
        # Before the output, which has the embedding's matrix and a bias, lies one more layer.
        *linear("transform.dense", hidden, hidden, 1, bias=True),
        Weight("decoder", (words,)),
        *([] if config.get("tie_word_embeddings", True) else linear("decoder", hidden, words, 1)),
        Weight("LayerNorm", (hidden,), 2 * (2 * layers + 2)),
    ]


_OTHERS: dict[str, Callable[[Config], list[Weight]]] = {
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "bert": _bert,
    "roberta": _bert,
}
KNOWN = tuple(sorted([*_DECODERS, *_OTHERS]))
