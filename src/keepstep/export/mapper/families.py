"""Mappers for model families: from the names of Hugging Face's files to fused and stacked weights.

Ours, for each layer under `layers.<i>.`: `attention.qkv` (rows of q, then k, then v), `attention.out`,
`attention_norm`, `mlp_norm`, and `mlp.gate_up` (rows of gate, then up) with `mlp.down`; of mixture-of-experts layers
`moe.router.weight` and, for grouped matrix products (input x weight), `moe.gate_up` [experts, hidden, 2 x intermediate]
and `moe.down` [experts, intermediate, hidden]. Outside of the layers: `embed.weight`, `norm.weight` and, if it is not
the embedding, `head.weight`.

Names and shapes of the other side: `modeling_llama.py` and `modeling_qwen3_moe.py` of transformers 5.24, and what its
`save_pretrained` writes.
"""

from collections.abc import Collection
from typing import Literal

from keepstep.config.mapper import (
    Composite,
    Concatenate,
    Leaf,
    PermuteHeads,
    Rename,
    RotaryLayout,
    Scope,
    Stack,
    Transpose,
)
from keepstep.export.mapper.mapper import Mapper

_Steps = list[Leaf | Composite]


def llama(
    *,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    tied: bool = False,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    rotary: RotaryLayout = "half_split",
) -> Mapper:
    """Llama and models with its names (Mistral): Hugging Face to ours. `invert()` is the way back.

    Args:
        layers: `num_hidden_layers`.
        heads: `num_attention_heads`.
        kv_heads: `num_key_value_heads`.
        head_dim: rows of a head in `q_proj`.
        tied: there is no head of its own (`tie_word_embeddings`); files then have no `lm_head.weight`.
        attention_bias: the projections of the attention have biases.
        mlp_bias: the projections of the MLP have biases.
        rotary: the layout of ours. Hugging Face's is `half_split`.
    """
    steps = _outside(tied)
    for layer in range(layers):
        inner = [*_attention(heads, kv_heads, head_dim, rotary, attention_bias), *_dense_mlp(mlp_bias)]
        steps.append(_layer(layer, inner))
    return Mapper(tuple(steps))


def qwen3_moe(
    *,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    experts: int,
    dense_layers: Collection[int] = (),
    tied: bool = False,
    attention_bias: bool = False,
    rotary: RotaryLayout = "half_split",
    source: Literal["files", "module"] = "files",
) -> Mapper:
    """Qwen3-MoE: Hugging Face to ours. `invert()` is the way back.

    Args:
        layers: `num_hidden_layers`.
        heads: `num_attention_heads`.
        kv_heads: `num_key_value_heads`.
        head_dim: `head_dim`.
        experts: `num_experts`.
        dense_layers: layers with a plain MLP (`mlp_only_layers`, and those that `decoder_sparse_step` passes over).
        tied: there is no head of its own (`tie_word_embeddings`); files then have no `lm_head.weight`.
        attention_bias: the projections of the attention have biases.
        rotary: the layout of ours. Hugging Face's is `half_split`.
        source: whose names the other side has. `files`: three matrices for each expert, as `save_pretrained` writes
            them and every version reads them. `module`: `state_dict()` of transformers 5, which stacks the experts.
    """
    steps = _outside(tied)
    for layer in range(layers):
        inner = _attention(heads, kv_heads, head_dim, rotary, attention_bias)
        inner += _head_norms(rotary)
        inner += _dense_mlp(False) if layer in dense_layers else _experts(experts, source)
        steps.append(_layer(layer, inner))
    return Mapper(tuple(steps))


def _outside(tied: bool) -> _Steps:
    names = {"model.embed_tokens.weight": "embed.weight", "model.norm.weight": "norm.weight"}
    return [Rename(names=names if tied else {**names, "lm_head.weight": "head.weight"})]


def _layer(layer: int, steps: _Steps) -> Scope:
    norms = Rename(
        names={
            "input_layernorm.weight": "attention_norm.weight",
            "post_attention_layernorm.weight": "mlp_norm.weight",
        }
    )
    return Scope(prefix=f"model.layers.{layer}.", to=f"layers.{layer}.", steps=(*steps, norms))


def _attention(heads: int, kv_heads: int, head_dim: int, rotary: RotaryLayout, bias: bool) -> _Steps:
    steps: _Steps = []
    for kind in _parameters(bias):
        query, key, value = (f"self_attn.{one}_proj.{kind}" for one in "qkv")
        if rotary == "interleaved":
            steps.append(PermuteHeads(names=(query,), heads=heads, to=rotary))
            steps.append(PermuteHeads(names=(key,), heads=kv_heads, to=rotary))
        sizes = (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
        steps.append(Concatenate(take=(query, key, value), give=f"attention.qkv.{kind}", sizes=sizes))
        steps.append(Rename(names={f"self_attn.o_proj.{kind}": f"attention.out.{kind}"}))
    return steps


def _head_norms(rotary: RotaryLayout) -> _Steps:
    names = {f"self_attn.{one}_norm.weight": f"attention.{one}_norm.weight" for one in "qk"}
    steps: _Steps = [Rename(names=names)]
    if rotary == "interleaved":
        steps.append(PermuteHeads(names=tuple(names.values()), heads=1, to=rotary))
    return steps


def _dense_mlp(bias: bool) -> _Steps:
    steps: _Steps = []
    for kind in _parameters(bias):
        steps.append(Concatenate(take=(f"mlp.gate_proj.{kind}", f"mlp.up_proj.{kind}"), give=f"mlp.gate_up.{kind}"))
        steps.append(Rename(names={f"mlp.down_proj.{kind}": f"mlp.down.{kind}"}))
    return steps


def _experts(experts: int, source: Literal["files", "module"]) -> _Steps:
    steps: _Steps = [Rename(names={"mlp.gate.weight": "moe.router.weight"})]
    if source == "module":
        names = {"mlp.experts.gate_up_proj": "moe.gate_up", "mlp.experts.down_proj": "moe.down"}
        return [*steps, Rename(names=names), Transpose(names=tuple(names.values()), dims=(1, 2))]
    one = "mlp.experts.{expert}"
    return [
        *steps,
        Concatenate(take=(f"{one}.gate_proj.weight", f"{one}.up_proj.weight"), give=f"{one}.gate_up"),
        # Before they are stacked, where it costs no memory: a stack would have to be copied.
        Transpose(names=(f"{one}.gate_up", f"{one}.down_proj.weight")),
        Stack(take=f"{one}.gate_up", give="moe.gate_up", count=experts),
        Stack(take=f"{one}.down_proj.weight", give="moe.down", count=experts),
    ]


def _parameters(bias: bool) -> tuple[str, ...]:
    return ("weight", "bias") if bias else ("weight",)
