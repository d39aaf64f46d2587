"""The formulas against the models that transformers builds, and against well-known sizes."""

from collections import Counter
from typing import Any

import peft
import pytest
import torch
import transformers

from keepstep.plan.model_families import KNOWN, weights_of
from keepstep.plan.model_size import ModelSizeError, Weight, lora, lump, parameters_of

MASKED = ("bert", "roberta")
# Numbers that nothing else is, so that none can stand in another's place.
TINY = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 41, "num_hidden_layers": 5, "num_attention_heads": 3}
GROUPED = {**TINY, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10}
EXPERTS = {**GROUPED, "num_experts": 7, "moe_intermediate_size": 13, "decoder_sparse_step": 2, "mlp_only_layers": [1]}
GPT2 = {"vocab_size": 97, "n_embd": 24, "n_layer": 5, "n_head": 3, "n_positions": 31}
CONFIGS: list[dict[str, Any]] = [
    {"model_type": "llama", **TINY},
    {"model_type": "llama", **GROUPED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    {"model_type": "mistral", **GROUPED},
    {"model_type": "mistral", **GROUPED, "num_key_value_heads": None, "num_attention_heads": 16, "head_dim": None},
    {"model_type": "mixtral", **GROUPED, "num_local_experts": 7},
    {"model_type": "qwen2", **GROUPED, "head_dim": None},
    {"model_type": "qwen2_moe", **EXPERTS, "head_dim": None, "shared_expert_intermediate_size": 17},
    {"model_type": "qwen2_moe", **EXPERTS, "qkv_bias": False, "shared_expert_intermediate_size": 17},
    {"model_type": "qwen3", **TINY, "num_key_value_heads": 1},
    {"model_type": "qwen3", **GROUPED, "attention_bias": True, "tie_word_embeddings": True},
    {"model_type": "qwen3_moe", **EXPERTS},
    {"model_type": "gemma", **TINY, "num_key_value_heads": 1},
    {"model_type": "gemma2", **GROUPED},
    {"model_type": "gemma2", **GROUPED, "tie_word_embeddings": False},
    {"model_type": "gemma3_text", **GROUPED},
    {"model_type": "gpt2", **GPT2},
    {"model_type": "gpt2", **GPT2, "n_inner": 41, "tie_word_embeddings": False},
    {"model_type": "gpt_neox", **TINY},
    {"model_type": "gpt_neox", **TINY, "attention_bias": False, "tie_word_embeddings": True},
    {"model_type": "bert", **TINY, "max_position_embeddings": 31, "type_vocab_size": 3},
    {"model_type": "roberta", **TINY, "max_position_embeddings": 31},
]


def build(config: dict[str, Any]) -> Any:
    """The model without its memory."""
    fields = {name: value for name, value in config.items() if value is not None and name != "model_type"}
    described = transformers.AutoConfig.for_model(config["model_type"], **fields)
    masked = config["model_type"] in MASKED
    kind = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(described)


def name_of(config: dict[str, Any]) -> str:
    return f"{config['model_type']}-{len(config)}"


@pytest.mark.parametrize("config", CONFIGS, ids=name_of)
def test_every_shape_is_that_of_the_model(config: dict[str, Any]) -> None:
    weights = weights_of(config)
    assert weights is not None
    found = Counter[tuple[int, ...]]()
    for weight in weights:
        # Of Conv1D (GPT-2) the matrix lies the other way round.
        found[tuple(sorted(weight.shape))] += weight.count
    assert found == Counter(tuple(sorted(parameter.shape)) for parameter in build(config).parameters())


def test_every_family_is_compared() -> None:
    assert {config["model_type"] for config in CONFIGS} == set(KNOWN)


@pytest.mark.parametrize(
    ("config", "targets"),
    [
        (CONFIGS[1], ("q_proj", "v_proj")),
        (CONFIGS[0], ("all-linear",)),
        (CONFIGS[6], ("all-linear",)),
        (CONFIGS[15], ("c_attn", "mlp.c_proj")),
        (CONFIGS[19], ("dense",)),
        (CONFIGS[0], ("lm_head", "down_proj")),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else ",".join(value),
)
def test_adapters_are_as_large_as_those_of_peft(config: dict[str, Any], targets: tuple[str, ...]) -> None:
    chosen = targets[0] if targets == ("all-linear",) else list(targets)
    kind = None if config["model_type"] in MASKED else "CAUSAL_LM"
    adapted = peft.get_peft_model(build(config), peft.LoraConfig(r=3, target_modules=chosen, task_type=kind))
    weights = weights_of(config)
    assert weights is not None
    trained = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    assert parameters_of(lora(weights, 3, targets)) == trained


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA, 8_030_261_248),  # Llama 3.1 8B
        (
            {
                "model_type": "qwen2",  # Qwen2.5 0.5B
                "vocab_size": 151936,
                "hidden_size": 896,
                "intermediate_size": 4864,
                "num_hidden_layers": 24,
                "num_attention_heads": 14,
                "num_key_value_heads": 2,
                "tie_word_embeddings": True,
            },
            494_032_768,
        ),
        ({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12}, 124_439_808),
        (
            {
                "model_type": "mixtral",  # 8x7B
                "vocab_size": 32000,
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "num_local_experts": 8,
            },
            46_702_792_704,
        ),
    ],
    ids=["llama", "qwen2", "gpt2", "mixtral"],
)
def test_sizes_that_everybody_knows(config: dict[str, Any], parameters: int) -> None:
    weights = weights_of(config)
    assert weights is not None
    assert parameters_of(weights) == parameters
    assert sum(parameter.numel() for parameter in build(config).parameters()) == parameters


def test_an_adapter_of_rank_16_on_llama_8b_has_42_million() -> None:
    weights = weights_of(LLAMA)
    assert weights is not None
    # 32 layers, r x (in + out): q and o 4096+4096, k and v 4096+1024, gate, up and down 4096+14336.
    each = 2 * 8192 + 2 * 5120 + 3 * 18432
    assert parameters_of(lora(weights, 16, ["all-linear"])) == 32 * 16 * each == 41_943_040


@pytest.mark.parametrize(
    "config", [{"model_type": "unheard-of"}, {}, {**LLAMA, "architectures": ["LlamaForSequenceClassification"]}]
)
def test_what_is_not_known_is_not_guessed(config: dict[str, Any]) -> None:
    assert weights_of(config) is None


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"])
@pytest.mark.parametrize("value", [None, "many", -1, 1.5, True])
def test_a_field_that_is_missing_or_no_number_is_named(field: str, value: Any) -> None:
    with pytest.raises(ModelSizeError, match=field):
        weights_of({**LLAMA, field: value})


def test_adapters_that_cannot_be_told() -> None:
    weights = (Weight("mlp.up_proj", (8, 4), 2, is_linear=True), Weight("norm", (4,), 2))
    with pytest.raises(ModelSizeError, match=r"no linear layer is called up; there are up_proj"):
        lora(weights, 2, ["up"])
    with pytest.raises(ModelSizeError, match=r"needs the shapes"):
        lora(lump(100), 2, ["all-linear"])
