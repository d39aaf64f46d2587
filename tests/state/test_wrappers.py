"""Plain, compiled and wrapped models load each other's checkpoints. DDP and FSDP2: see test_layouts.py."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import keepstep


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 2)))


def inner_compiled() -> nn.Module:
    model = plain()
    model[1] = torch.compile(model[1], backend="eager")
    return model


def recomputed() -> nn.Module:
    model = plain()
    model[0] = checkpoint_wrapper(model[0])
    return model


KINDS: dict[str, Callable[[], Any]] = {
    "plain": plain,
    "compiled": lambda: torch.compile(plain(), backend="eager"),
    "inner compiled": inner_compiled,
    "recomputed": recomputed,
    "data parallel": lambda: nn.DataParallel(plain()),
    "compiled and recomputed": lambda: torch.compile(recomputed(), backend="eager"),
}


def parts(kind: str, steps: int) -> dict[str, Any]:
    torch.manual_seed(steps)
    model = KINDS[kind]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return {"model": model, "optimizer": optimizer}


@pytest.mark.parametrize(("saved", "loaded"), list(product(KINDS, KINDS)))
def test_each_loads_the_other(tmp_path: Path, saved: str, loaded: str) -> None:
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=5)
    first, second = parts(saved, 2), parts(loaded, 0)
    with keepstep.Checkpointer(config, keepstep.JobState(**first), handle_signals=False) as saver:
        saver.save(2)
    with keepstep.Checkpointer(config, keepstep.JobState(**second), handle_signals=False) as loader:
        assert loader.resume() == 2
    for a, b in zip(first["model"].parameters(), second["model"].parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(first["optimizer"].state[a]["exp_avg"], second["optimizer"].state[b]["exp_avg"])
