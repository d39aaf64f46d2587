"""A tiny language model with real adapters of PEFT, and a tokenizer."""

from pathlib import Path
from typing import Any

import peft
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn
from transformers import PreTrainedTokenizerFast

import keepstep


class Net(nn.Module):
    """Embedding, a layer that is adapted, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(8, 16)
        self.base = nn.Linear(16, 32)
        self.head = nn.Linear(32, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.base(self.emb(ids))))


IDS = torch.arange(8)


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def save_base(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(net(seed).state_dict(), folder / "model.safetensors")
    return folder


def tokenizer(words: tuple[str, ...] = ("a", "b", "p")) -> PreTrainedTokenizerFast:
    inner = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="a"))
    inner.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="p")


def trained(folder: Path, *adapters: peft.LoraConfig, only_trainable: bool = True, base: Path | None = None) -> Any:
    """A model whose first adapter ("mine", then "other") was trained a little, and saved as `<folder>/run/save-3`."""
    model = peft.get_peft_model(net(), adapters[0], adapter_name="mine")
    for config in adapters[1:]:
        model.add_adapter("other", config)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    from keepstep.export.source import source_digest
    from keepstep.provenance.tokenizer import tokenizer_digest
    from keepstep.storage.content import FileDigests

    facts = keepstep.RunFacts(
        "run",
        base_model="me/base",
        base_revision="0e9e39f",
        base_weights=None if base is None else source_digest(base, FileDigests()),
        tokenizer_sha256=tokenizer_digest(tokenizer()),
    )
    state = keepstep.JobState(model=model, optimizer=optimizer, only_trainable_parameters=only_trainable)
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=3)
    with keepstep.Checkpointer(config, state, "run", facts=facts) as saver:
        saver.resume()
        for step in range(1, 4):
            optimizer.zero_grad()
            model(IDS).square().mean().backward()
            optimizer.step()
            saver.save_if_due(step)
    return model.eval()
