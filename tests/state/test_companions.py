"""What stands beside a model: averaged weights and gradient scalers come back as they were."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import keepstep


def build() -> dict[str, Any]:
    torch.manual_seed(1)
    model = nn.Linear(3, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "task": AveragedModel(model),
        "metrics": scaler,
    }


def step(parts: dict[str, Any], *, overflow: bool = False) -> None:
    loss = parts["model"](torch.full((2, 3), float("inf") if overflow else 0.5)).square().sum()
    parts["metrics"].scale(loss).backward()
    parts["metrics"].step(parts["optimizer"])
    parts["metrics"].update()
    parts["optimizer"].zero_grad()
    parts["task"].update_parameters(parts["model"])


def state(parts: dict[str, Any]) -> list[Any]:
    averaged = {key: value.tolist() for key, value in parts["task"].state_dict().items()}
    weights = {key: value.tolist() for key, value in parts["model"].state_dict().items()}
    return [averaged, weights, parts["metrics"].state_dict()]


def test_averaged_weights_and_a_scaler_that_has_skipped_a_step(tmp_path: Path) -> None:
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=5)
    first = build()
    for number in range(4):
        step(first, overflow=number == 2)
    with keepstep.Checkpointer(config, keepstep.JobState(**first), handle_signals=False) as saver:
        saver.save(4)
    second = build()
    with keepstep.Checkpointer(config, keepstep.JobState(**second), handle_signals=False) as loader:
        assert loader.resume() == 4
    assert state(first) == state(second)
    assert first["metrics"].get_scale() == 512.0
    for parts in (first, second):
        step(parts)
    assert state(first) == state(second)
