"""Pipelines: one update a step, twin-equal after a stop, and refused by name where stages do not make up the model."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from keepstep.errors import ConfigError
from keepstep.job import loop as loop_module
from keepstep.job.model_parts import StageSet
from keepstep.job.pipeline import refuse_stages
from keepstep.job.protocols import JobContext
from keepstep.job.train import TrainingJob
from tests.rig import forks, jobs
from tests.rig.layouts import LAYOUTS, Task, Tower, config


class Centered(nn.Module):
    """A buffer that is given anew at each pass, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.dropout(x - self.mean)


def sequential(context: JobContext) -> nn.Sequential:
    return nn.Sequential(Centered(), nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 3))


class Counting(Task):
    """Its state counts what it was asked for."""

    def inputs(self, batch: Any) -> list[torch.Tensor]:
        self.seen += 1
        return super().inputs(batch)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def counting(context: JobContext) -> Counting:
    return Counting()


def job(folder: Path, name: str) -> Any:
    made = config(folder, LAYOUTS[name])
    here = "tests.job.test_pipeline"
    providers = {"model": f"{here}:sequential", "dataset": made.providers.dataset, "task": f"{here}:counting"}
    return type(made).model_validate({**made.model_dump(), "providers": providers})


@pytest.mark.parametrize("name", ["PP 2", "PP 2 interleaved"])
def test_a_stopped_pipeline_is_twin_equal(tmp_path: Path, name: str) -> None:
    def dies() -> None:
        loop_module.leave_if_asked = lambda saver, step, total: os._exit(9) if step == 5 else None
        TrainingJob(job(tmp_path / "b", name)).run()

    forks.values(lambda: TrainingJob(job(tmp_path / "a", name)).run(), 2)
    assert {end.status for end in forks.run(dies, 2)} == {9}
    forks.values(lambda: TrainingJob(job(tmp_path / "b", name)).run(), 2)
    assert jobs.rows(tmp_path / "a") == jobs.rows(tmp_path / "b")
    assert jobs.state(tmp_path / "a", 10) == jobs.state(tmp_path / "b", 10)


def test_stages_that_do_not_make_up_the_model_are_refused() -> None:
    model = Tower()
    refuse_stages(model, model.pipeline_stages(2))
    layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=r"stages 0 and 1 both hold the name 0\.weight"):
        refuse_stages(layers, [nn.Sequential(layers[0]), nn.Sequential(layers[1])])
    with pytest.raises(ConfigError, match=r"do not hold what the model does"):
        refuse_stages(model, model.pipeline_stages(3)[:2])
    model.head.weight = nn.Parameter(torch.zeros(3, 10))
    model.blocks[3].down.bias = model.blocks[0].down.bias
    with pytest.raises(ConfigError, match="in another stage"):
        refuse_stages(model, model.pipeline_stages(2))


def test_a_weight_that_is_tied_within_a_stage_is_one_parameter() -> None:
    stage = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    stage[1].weight = stage[0].weight
    assert len(list(StageSet([stage]).parameters())) == 3
