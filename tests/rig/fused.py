"""A small decoder with fused weights, under the names that the mappers of families give."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def rotate(x: torch.Tensor, theta: float, interleaved: bool) -> torch.Tensor:
    """Rotary position embedding of [batch, heads, positions, head_dim]."""
    positions, head_dim = x.shape[-2:]
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.arange(positions).float()[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, config: Any, interleaved: bool, head_norms: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.interleaved = config.head_dim, interleaved
        self.theta = config.rope_parameters["rope_theta"]
        rows = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.qkv = nn.Linear(config.hidden_size, rows, bias=config.attention_bias)
        self.out = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=config.attention_bias)
        if head_norms:
            self.q_norm = nn.RMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, config.rms_norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, positions, _ = x.shape
        sizes = [one * self.head_dim for one in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = (one.view(batch, positions, -1, self.head_dim) for one in self.qkv(x).split(sizes, -1))
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = (rotate(one.transpose(1, 2), self.theta, self.interleaved) for one in (q, k))
        mixed = functional.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Mlp(nn.Module):
    def __init__(self, hidden: int, inner: int, bias: bool) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=bias)
        self.down = nn.Linear(inner, hidden, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        out: torch.Tensor = self.down(functional.silu(gate) * up)
        return out


class Moe(nn.Module):
    """Every expert sees every token; a token takes its best ones."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, inner, experts = config.hidden_size, config.moe_intermediate_size, config.num_experts
        self.best, self.normalised = config.num_experts_per_tok, config.norm_topk_prob
        self.router = nn.Linear(hidden, experts, bias=False)
        self.gate_up = nn.Parameter(torch.zeros(experts, hidden, 2 * inner))
        self.down = nn.Parameter(torch.zeros(experts, inner, hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chances, chosen = self.router(x).softmax(-1).topk(self.best, -1)
        if self.normalised:
            chances = chances / chances.sum(-1, keepdim=True)
        weights = torch.zeros(*x.shape[:-1], len(self.down)).scatter(-1, chosen, chances)
        gate, up = torch.einsum("bth,ehi->btei", x, self.gate_up).chunk(2, -1)
        return torch.einsum("btei,eih,bte->bth", functional.silu(gate) * up, self.down, weights)


class Layer(nn.Module):
    def __init__(self, config: Any, interleaved: bool, sparse: bool, head_norms: bool) -> None:
        super().__init__()
        self.attention = Attention(config, interleaved, head_norms)
        self.attention_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        if sparse:
            self.moe = Moe(config)
        else:
            self.mlp = Mlp(config.hidden_size, config.intermediate_size, getattr(config, "mlp_bias", False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        inner = self.moe if hasattr(self, "moe") else self.mlp
        out: torch.Tensor = x + inner(self.mlp_norm(x))
        return out


class FusedDecoder(nn.Module):
    """Made from a config of transformers (LlamaConfig, Qwen3MoeConfig); token ids to logits."""

    def __init__(self, config: Any, *, interleaved: bool = False) -> None:
        super().__init__()
        moe = hasattr(config, "num_experts")
        dense = set(config.mlp_only_layers) if moe else set(range(config.num_hidden_layers))
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Layer(config, interleaved, sparse=i not in dense, head_norms=moe) for i in range(config.num_hidden_layers)
        )
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        if not config.tie_word_embeddings:
            self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        head = self.head.weight if hasattr(self, "head") else self.embed.weight
        return functional.linear(self.norm(x), head)
