"""The mappers of families against transformers' own models: equal logits one way, equal bits the other."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from keepstep.config.mapper import RotaryLayout
from keepstep.errors import ConfigError
from keepstep.export.mapper import Mapper, llama, qwen3_moe, spec_of
from keepstep.plan.mapping import TensorSpec
from tests.rig.fused import FusedDecoder

transformers = pytest.importorskip("transformers")

LLAMA = {
    "vocab_size": 48, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
QWEN = {
    **LLAMA, "moe_intermediate_size": 12, "num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": True,
    "mlp_only_layers": [1],
}  # fmt: skip
NUMBERS = {"layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 8}
IDS = torch.arange(2 * 9).reshape(2, 9) % 48


def model_of(config: Any) -> Any:
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases begin as constants, which would hide a mistake
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def saved(model: Any, folder: Path) -> dict[str, torch.Tensor]:
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def logits_of(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.no_grad():
        out = model(ids)
    logits: torch.Tensor = getattr(out, "logits", out)
    return logits


def ours(config: Any, mapper: Mapper, state: dict[str, torch.Tensor], interleaved: bool) -> FusedDecoder:
    model = FusedDecoder(config, interleaved=interleaved)
    model.load_state_dict(mapper.apply(state))
    return model


def assert_same_bits(made: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert made.keys() == expected.keys()
    for name, tensor in made.items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("rotary", ["half_split", "interleaved"])
@pytest.mark.parametrize("options", [False, True])
def test_llama(tmp_path: Path, rotary: RotaryLayout, options: bool) -> None:
    config = transformers.LlamaConfig(**LLAMA, tie_word_embeddings=options, attention_bias=options, mlp_bias=options)
    theirs = model_of(config)
    state = saved(theirs, tmp_path)
    mapper = llama(**NUMBERS, tied=options, attention_bias=options, mlp_bias=options, rotary=rotary)
    model = ours(config, mapper, state, rotary == "interleaved")
    torch.testing.assert_close(logits_of(model), logits_of(theirs), rtol=1e-4, atol=1e-4)
    assert_same_bits(mapper.invert().apply(model.state_dict()), state)
    other = ours(config, mapper, state, rotary != "interleaved")
    assert (logits_of(other) - logits_of(theirs)).abs().max() > 0.01, "the layout of heads makes no difference here"


@pytest.mark.parametrize("rotary", ["half_split", "interleaved"])
def test_qwen3_moe_as_files_and_as_a_module(tmp_path: Path, rotary: RotaryLayout) -> None:
    config = transformers.Qwen3MoeConfig(**QWEN)
    theirs = model_of(config)
    for source, state in (("files", saved(theirs, tmp_path)), ("module", theirs.state_dict())):
        mapper = qwen3_moe(**NUMBERS, experts=5, dense_layers=[1], rotary=rotary, source=source)
        model = ours(config, mapper, state, rotary == "interleaved")
        torch.testing.assert_close(logits_of(model), logits_of(theirs), rtol=1e-4, atol=1e-4)
        assert_same_bits(mapper.invert().apply(model.state_dict()), state)
        other = ours(config, mapper, state, rotary != "interleaved")
        assert (logits_of(other) - logits_of(theirs)).abs().max() > 0.01


def test_what_the_inverse_writes_is_loaded_by_transformers(tmp_path: Path) -> None:
    config = transformers.Qwen3MoeConfig(**QWEN)
    theirs = model_of(config)
    files = qwen3_moe(**NUMBERS, experts=5, dense_layers=[1])
    module = qwen3_moe(**NUMBERS, experts=5, dense_layers=[1], source="module")
    weights = files.invert().apply(module.apply(theirs.state_dict()))
    assert_same_bits(weights, saved(theirs, tmp_path / "theirs"))
    config.save_pretrained(tmp_path / "ours")
    save_file(weights, tmp_path / "ours/model.safetensors", {"format": "pt"})
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert torch.equal(logits_of(again), logits_of(theirs))


def specs(state: dict[str, torch.Tensor]) -> dict[str, TensorSpec]:
    return {name: spec_of(tensor) for name, tensor in state.items()}


def test_a_model_with_other_numbers_is_refused_by_the_names_that_do_not_fit() -> None:
    config = transformers.LlamaConfig(**LLAMA)
    with torch.device("meta"):
        state = specs(transformers.LlamaForCausalLM(config).state_dict())
    with pytest.raises(ConfigError) as error:
        llama(**{**NUMBERS, "layers": 4}).plan(state)
    assert "no name begins with model.layers.3." in str(error.value)
    with pytest.raises(ConfigError) as error:
        llama(**{**NUMBERS, "layers": 2}).plan(state)
    assert "model.layers.2.mlp.down_proj.weight is unread" in str(error.value)
    with pytest.raises(ConfigError, match=r"under model.layers.0.: .*lengths are \[32, 16, 16\], declared is \[32, 32"):
        llama(**{**NUMBERS, "kv_heads": 4}).plan(state)
    with pytest.raises(ConfigError, match=r"lm_head.weight is unread"):
        llama(**NUMBERS, tied=True).plan(state)
    del state["model.layers.1.self_attn.k_proj.weight"]
    with pytest.raises(ConfigError) as error:
        llama(**NUMBERS).plan(state)
    assert str(error.value) == "steps.2.0 concatenate under model.layers.1.: self_attn.k_proj.weight is missing"


def test_a_large_model_is_planned_without_its_weights() -> None:
    """The names of Qwen3-30B-A3B: 18 867 of them."""
    hidden, inner = 2048, 768
    state = {name: TensorSpec((151936, hidden), "bfloat16") for name in ("model.embed_tokens.weight", "lm_head.weight")}
    state["model.norm.weight"] = TensorSpec((hidden,), "bfloat16")
    for layer in range(48):
        for name, shape in {
            "input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (4096, hidden), "self_attn.k_proj.weight": (512, hidden),
            "self_attn.v_proj.weight": (512, hidden), "self_attn.o_proj.weight": (hidden, 4096),
            "self_attn.q_norm.weight": (128,), "self_attn.k_norm.weight": (128,), "mlp.gate.weight": (128, hidden),
            **{f"mlp.experts.{e}.{one}_proj.weight": (inner, hidden) for e in range(128) for one in ("gate", "up")},
            **{f"mlp.experts.{e}.down_proj.weight": (hidden, inner) for e in range(128)},
        }.items():  # fmt: skip
            state[f"model.layers.{layer}.{name}"] = TensorSpec(shape, "bfloat16")
    assert len(state) == 18867
    plan = qwen3_moe(layers=48, heads=32, kv_heads=4, head_dim=128, experts=128).plan(state)
    assert plan.names["layers.47.moe.gate_up"] == TensorSpec((128, hidden, 2 * inner), "bfloat16")
    assert len(plan.sources) == len(state)
    assert len(plan.groups) == len(plan.outputs) == 3 + 48 * 9
