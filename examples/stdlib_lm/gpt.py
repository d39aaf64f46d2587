"""A small byte-level GPT. Beside each byte it also looks up what the last 2 to 6 bytes were, in hashed tables."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keepstep.job.protocols import JobContext

_PRIME = 2**31 - 1


class NgramTables(nn.Module):
    """Learned vectors for the last 2, 3, ..., `longest` bytes at each position, joined."""

    def __init__(self, longest: int, buckets: int, width: int) -> None:
        super().__init__()
        self.buckets = buckets
        self.tables = nn.ModuleList(nn.Embedding(buckets, width) for _ in range(longest - 1))

    def forward(self, tokens: Tensor) -> Tensor:
        earlier, code, found = tokens, tokens + 1, []
        for table in self.tables:
            earlier = F.pad(earlier, (1, 0))[:, :-1]
            code = (code * 1_000_003 + earlier + 1) % _PRIME
            found.append(table(code % self.buckets))
        return torch.cat(found, dim=-1)


class Block(nn.Module):
    """Causal self-attention with rotary positions, then an MLP; both normalised before and added."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.attention_out.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True)
        x = x + self.dropout(self.attention_out(y.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.mlp_norm(x)))))


class GPT(nn.Module):
    """From byte values (batch, length) to logits of the next byte (batch, length, 256)."""

    def __init__(
        self,
        width: int = 192,
        layers: int = 3,
        heads: int = 3,
        context: int = 80,
        dropout: float = 0.05,
        longest: int = 6,
        buckets: int = 16384,
        table_width: int = 32,
    ) -> None:
        super().__init__()
        features = (longest - 1) * table_width
        self.context = context
        self.embed = nn.Embedding(256, width)
        self.ngrams = NgramTables(longest, buckets, table_width)
        self.ngrams_in = nn.Linear(features, width, bias=False)
        self.ngrams_out = nn.Linear(features, 256, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, 256)
        for table in (self.embed, *self.ngrams.tables):
            nn.init.normal_(table.weight, std=0.05)
        nn.init.normal_(self.ngrams_in.weight, std=features**-0.5)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        half = width // heads // 2
        angle = torch.arange(context)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        features = self.ngrams(tokens)
        x = self.dropout(self.embed(tokens) + self.ngrams_in(features))
        for block in self.blocks:
            x = block(x, self.cos[:length], self.sin[:length])
        return self.head(self.norm(x)) + self.ngrams_out(features)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def build(context: JobContext) -> GPT:
    """The example's model: 4.1 million parameters."""
    return GPT()


def build_small(context: JobContext) -> GPT:
    """The same in a size for tests."""
    return GPT(width=32, layers=2, heads=2, context=32, longest=3, buckets=256, table_width=8)


def optimizer(context: JobContext, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW in three groups: matrices decay, vectors do not, and the tables learn fifty times as fast.

    A row of a table is seen in few steps only; that is why its rate is so much higher.
    """
    assert context.config.trainer is not None
    settings = context.config.trainer.optimizer
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    rest = [p for p in model.parameters() if not any(p is table for table in tables)]
    groups = [
        {"params": [p for p in rest if p.ndim == 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
        {"params": tables, "weight_decay": 0.0, "lr": 50 * settings.lr},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps)
