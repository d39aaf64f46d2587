from pathlib import Path

import pytest
import torch
from torch import nn

import keepstep


class Tied(nn.Module):
    """A head tied to the embedding, whose name comes first in the alphabet and last in the model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.a_head = nn.Linear(4, 7, bias=False)
        self.a_head.weight = self.embed.weight


class Average:
    """A second set of weights under the model's names."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = {name: value.detach() + 1 for name, value in model.state_dict().items()}

    def state_dict(self) -> dict[str, object]:
        return {"ema": self.weights, "decay": 0.9}

    def load_state_dict(self, state: dict[str, object]) -> None: ...


@pytest.fixture
def tied(tmp_path: Path) -> tuple[Path, nn.Module]:
    """A checkpoint of step 10, and its model. In the one of step 5 all weights are twice as large."""
    torch.manual_seed(1)
    model = Tied()
    state = keepstep.JobState(model=model, task=Average(model))
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path / "run"), period_steps=5, num_to_keep=None)
    with torch.no_grad(), keepstep.Checkpointer(config, state, handle_signals=False) as saver:
        for factor, step in ((2.0, 5), (0.5, 10)):
            for parameter in model.parameters():
                parameter.mul_(factor)
            saver.save(step)
    return tmp_path / "run" / "save-10", model
