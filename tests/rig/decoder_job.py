"""A job that trains a decoder of ours from weights of transformers' Llama."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from keepstep.config import JobConfig
from keepstep.job.protocols import JobContext
from tests.rig import jobs
from tests.rig.fused import FusedDecoder

NUMBERS = {
    "vocab_size": 48, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
IDS = torch.arange(9)[None]


def save_llama(folder: Path) -> Any:
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**NUMBERS)).eval()
    model.save_pretrained(folder, max_shard_size="20KB")
    return model


class Ids:
    name = "counted"

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return (torch.arange(9) * (index + 1)) % 48


class Task:
    def loss(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        logits = model(batch[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def model(context: JobContext) -> FusedDecoder:
    return FusedDecoder(transformers.LlamaConfig(**NUMBERS), interleaved=False)


def model_of_which_the_head_is_trained(context: JobContext) -> FusedDecoder:
    made = model(context)
    for name, parameter in made.named_parameters():
        parameter.requires_grad_("head" in name)
    return made


def dataset(context: JobContext) -> Ids:
    return Ids()


def task(context: JobContext) -> Task:
    return Task()


def training(folder: Path, total: int, *, only_head: bool = False, **trainer: Any) -> JobConfig:
    chosen = "model_of_which_the_head_is_trained" if only_head else "model"
    names = {"model": chosen, "dataset": "dataset", "task": "task"}
    factory = {
        "source_checkpoint": str(folder / "llama"),
        "source_mapper": "auto",
        "checkpoint_only_trainable_parameters": only_head,
    }
    return jobs.training(
        folder,
        total,
        providers={name: f"tests.rig.decoder_job:{function}" for name, function in names.items()},
        model_stage_factory=factory,
        export_to=str(folder / "export"),
        export_mapper="inverse",
        **trainer,
    )
