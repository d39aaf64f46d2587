"""Providers and configurations of tiny whole jobs."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from keepstep.config import JobConfig, parse_job
from keepstep.dcp.metadata import read_metadata, stored_keys
from keepstep.dcp.reader import read
from keepstep.job.protocols import JobContext


class Net(nn.Module):
    """An MLP with dropout whose first layer may be frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 16)
        self.adapter = nn.Linear(16, 4)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.adapter(self.dropout(torch.tanh(self.base(x))))


class Samples:
    kind = "a line of numbers"

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.linspace(-1, 1, 8) * (index + 1) / 50


class Augmented(Samples):
    """13 samples with noise from all three global random states."""

    def __len__(self) -> int:
        return 13

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        noise = random.random() + float(np.random.rand()) + torch.rand(1).item()
        return index, torch.linspace(-1, 1, 8) * (index + 1) / 13 + 0.1 * noise


class Task:
    """Counts the micro-batches that it has seen."""

    def __init__(self) -> None:
        self.seen = 0

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.seen += 1
        return model(batch[1]).square().mean()

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Sums:
    """Inference: the sum of the outputs for each sample, with its id."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def predict(self, model: nn.Module, batch: Any) -> list[Any]:
        assert not model.training
        ids, features = batch
        return [{"id": int(i), "sum": float(row.sum())} for i, row in zip(ids, model(features), strict=True)]

    def collect(self, results: Any) -> None:
        self.rows += results

    def result(self) -> str:
        return "".join(json.dumps(row) + "\n" for row in self.rows)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = state["rows"]


def model(context: JobContext) -> Net:
    return Net()


def frozen_model(context: JobContext) -> Net:
    net = Net()
    net.base.requires_grad_(False)
    return net


def model_without_dropout(context: JobContext) -> Net:
    net = Net()
    net.dropout.p = 0.0
    return net


def augmented(context: JobContext) -> Augmented:
    return Augmented()


def dataset(context: JobContext) -> Samples:
    return Samples()


def task(context: JobContext) -> Task:
    return Task()


def sums(context: JobContext) -> Sums:
    return Sums()


def broken(context: JobContext) -> None:
    raise RuntimeError("this provider must not be called")


def nothing(context: JobContext) -> None:
    """Forgets to return what it has made."""


PROVIDERS = {name: f"tests.rig.jobs:{name}" for name in ("model", "dataset", "task")}


def training(folder: Path, total: int = 12, *, providers: dict[str, str] | None = None, **trainer: Any) -> JobConfig:
    """A training job that saves every 4 steps to `<folder>/checkpoints/run`."""
    settings = {
        "run": {"name": "run"},
        "total_steps": total,
        "batching": {"global_batch_size": 4, "microbatch_size": 1},
        "determinism": {"base_seed": 7},
        "optimizer": {"lr": 0.05},
        "max_gradient_norm": 1.0,
        "lr_scheduler": {"phases": [{"percent": 10, "to": 1.0}, {"rest": True, "to": 0.0, "curve": "cosine"}]},
        "logging": {"period_steps": 1},
        "checkpointing": {"save_dir": str(folder / "checkpoints"), "period_steps": 4, "num_to_keep": 2},
    }
    return parse_job({"providers": PROVIDERS | (providers or {}), "trainer": settings | trainer})


def inference(folder: Path, **settings: Any) -> JobConfig:
    """An inference job that saves every 2 steps to `<folder>/inference` and writes `<folder>/sums.jsonl`."""
    base = {
        "batching": {"global_batch_size": 8, "microbatch_size": 2},
        "checkpointing": {"save_dir": str(folder / "inference"), "period_steps": 2, "num_to_keep": 1},
        "output_to": str(folder / "sums.jsonl"),
    }
    return parse_job({"providers": PROVIDERS | {"task": "tests.rig.jobs:sums"}, "inference": base | settings})


def state(folder: Path, step: int, run: str = "run") -> dict[str, Any]:
    """Every tensor and tree of a checkpoint, but what differs by nature between two runs (their id and file)."""
    checkpoint = folder / "checkpoints" / run / f"save-{step}"
    keys = stored_keys(read_metadata(checkpoint))
    tensors = {key: torch.empty(s.shape, dtype=s.dtype) for key, s in keys.items() if s.is_tensor}
    trees = read(checkpoint, tensors, [key for key, s in keys.items() if not s.is_tensor])
    values = {key: tensor.tolist() for key, tensor in tensors.items()} | trees
    return {key: value for key, value in values.items() if not key.startswith("tracker.")}


def rows(folder: Path, run: str = "run") -> dict[int, dict[str, Any]]:
    """The logged rows of a training job by step; a step that stands there twice fails."""
    lines = [json.loads(line) for line in (folder / "checkpoints" / run / "metrics.jsonl").read_text().splitlines()]
    by_step = {row["step"]: row for row in lines}
    assert len(by_step) == len(lines), "a step was logged twice"
    return by_step


def tree_digest(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and modification time of every file below a folder, but of keepstep's own book-keeping."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.name not in (".keepstep", "exit.json") and not path.name.startswith("lock-")
    }
