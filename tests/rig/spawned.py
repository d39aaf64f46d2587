"""A job for processes that Python starts anew: it imports what it needs and no more, which takes most of their time."""

import torch
from torch import nn

import keepstep


def train() -> None:
    """Ten steps of a model with dropout."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.1))
    config = keepstep.CheckpointingConfig(save_dir="never-made", period_steps=10)
    with keepstep.Checkpointer(config, keepstep.JobState(model=model), total_steps=10) as checkpointer:
        for step in range(checkpointer.resume() + 1, 11):
            loss = model(torch.rand(2, 8)).square().mean()
            with torch.no_grad():
                for parameter, gradient in zip(
                    model.parameters(), torch.autograd.grad(loss, model.parameters()), strict=True
                ):
                    parameter -= 0.1 * gradient
            checkpointer.save_if_due(step)
