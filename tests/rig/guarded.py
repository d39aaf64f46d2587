"""A tiny job of which everything that identifies it can be changed between two starts."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn

from keepstep.config import JobConfig
from keepstep.job.protocols import JobContext
from tests.rig import jobs


@dataclass(frozen=True)
class Content:
    """What providers make: rows of the data set, and words of the tokenizer."""

    rows: tuple[bytes, ...] = tuple(bytes([number]) * 8 for number in range(20))
    words: tuple[str, ...] = ("a", "b")
    loaded: list[str] = field(default_factory=list)


now = Content()


def change(**what: Any) -> None:
    """From the next start on."""
    global now
    now = replace(Content(), **what)


class Rows:
    def __init__(self, rows: Any) -> None:
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.tensor(list(self.rows[index]), dtype=torch.float32) / 255


class Task(jobs.Task):
    def __init__(self, words: tuple[str, ...]) -> None:
        super().__init__()
        self.tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="a"))


def dataset(context: JobContext) -> Rows:
    return Rows(now.rows)


def other_dataset(context: JobContext) -> Rows:
    """The same data from another function."""
    return Rows(now.rows)


def task(context: JobContext) -> Task:
    return Task(now.words)


def model(context: JobContext) -> nn.Module:
    now.loaded.append("model")
    return jobs.Net()


def training(folder: Path, total: int = 8, **trainer: Any) -> JobConfig:
    names = {name: f"tests.rig.guarded:{name}" for name in ("model", "dataset", "task")}
    return jobs.training(folder, total, providers=names | trainer.pop("providers", {}), **trainer)
