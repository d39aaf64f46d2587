import json
from typing import Any

import pytest
import torch

from keepstep.errors import ConfigError
from keepstep.export.mapper import llama, mapper_for, qwen3_moe, spec_of

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
QWEN = {**LLAMA, "model_type": "qwen3_moe", "head_dim": 16, "num_experts": 3}


def test_the_numbers_of_a_configuration_reach_the_mapper() -> None:
    numbers = {"layers": 2, "heads": 4, "kv_heads": 2}
    assert mapper_for(LLAMA) == llama(**numbers, head_dim=8)
    assert mapper_for({**LLAMA, "num_key_value_heads": None}) == llama(layers=2, heads=4, kv_heads=4, head_dim=8)
    options = {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 6}
    assert mapper_for({**LLAMA, **options}, rotary="interleaved") == llama(
        **numbers, head_dim=6, tied=True, attention_bias=True, mlp_bias=True, rotary="interleaved"
    )
    assert mapper_for(QWEN, source="module") == qwen3_moe(**numbers, head_dim=16, experts=3, source="module")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "gpt2"}, "model_type = 'gpt2': there is no mapper for it; known are llama, mistral, qwen3_moe"),
        ({}, "model_type = None: there is no mapper"),
        ({**LLAMA, "num_hidden_layers": None}, "llama: num_hidden_layers in the model's configuration: missing"),
        ({**LLAMA, "num_attention_heads": "4"}, "num_attention_heads in the model's configuration: '4' is no count"),
        ({**LLAMA, "num_attention_heads": 0}, "0 is no count"),
    ],
)
def test_a_configuration_that_says_too_little_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        mapper_for(config)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
        ("MistralConfig", {"head_dim": 6}),
        (
            "Qwen3MoeConfig",
            {"num_experts": 3, "decoder_sparse_step": 2, "mlp_only_layers": [3], "attention_bias": True},
        ),
    ],
)
def test_every_name_of_transformers_models_has_its_place(kind: str, options: dict[str, Any]) -> None:
    """Planned from config.json and the shapes alone: no name unread, none missing."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = getattr(transformers, kind)(**sizes, **options, vocab_size=16, intermediate_size=24)
    with torch.device("meta"):
        state = transformers.AutoModelForCausalLM.from_config(config).state_dict()
    mapper = mapper_for(json.loads(config.to_json_string()), source="module")
    specs = {name: spec_of(tensor) for name, tensor in state.items()}
    plan = mapper.plan(specs)
    assert {one.name for one in plan.sources} == set(specs)
    assert mapper.invert().plan(plan.names).names == specs
