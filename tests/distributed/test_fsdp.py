"""FSDP2 on a mesh of replicas and shards: every rank writes its part, any world reads it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import keepstep
from keepstep.dist.mesh import MeshShape, make_mesh
from keepstep.job.parallel import full_value, parallelize
from tests.rig import forks


class Net(nn.Module):
    """Odd sizes, and rows fewer than ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(7, 5), nn.Linear(5, 7)])
        self.head = nn.Linear(7, 3)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x) * self.scale


def on_mesh(model: nn.Module, shape: MeshShape) -> nn.Module:
    return parallelize(model, make_mesh(shape, torch.device("cpu")), shape)


def build(replicate: int, shard: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = on_mesh(Net(), MeshShape(replicate, shard))
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for number in range(count):
        model(torch.full((2, 7), 0.1 * (number + 1))).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights = {name: full_value(p.detach()).tolist() for name, p in model.named_parameters()}
    moments = {
        f"{name}.{slot}": full_value(value).tolist()
        for name, p in model.named_parameters()
        for slot, value in optimizer.state[p].items()
    }
    return {**weights, **moments}


def checkpointer(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> keepstep.Checkpointer:
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=5)
    return keepstep.Checkpointer(config, keepstep.JobState(model=model, optimizer=optimizer), world=forks.world)


def save(folder: Path, replicate: int, shard: int) -> dict[str, Any]:
    model, optimizer = build(replicate, shard)
    step(model, optimizer, 3)
    with checkpointer(folder, model, optimizer) as saver:
        saver.save(3)
    return whole(model, optimizer)


def load(folder: Path, replicate: int, shard: int) -> tuple[dict[str, Any], dict[str, Any]]:
    model, optimizer = build(replicate, shard)
    with checkpointer(folder, model, optimizer) as loader:
        assert loader.resume() == 3
    restored = whole(model, optimizer)
    step(model, optimizer, 2)
    return restored, whole(model, optimizer)


@pytest.mark.parametrize(("replicate", "shard"), [(1, 1), (2, 1), (1, 2), (1, 4), (2, 2)])
def test_full_weights_and_moments_come_back_bit_for_bit(tmp_path: Path, replicate: int, shard: int) -> None:
    saved = forks.values(lambda: save(tmp_path, replicate, shard), replicate * shard)
    assert all(one == saved[0] for one in saved)
    assert any("exp_avg" in name for name in saved[0])
    loaded = forks.values(lambda: load(tmp_path, replicate, shard), replicate * shard)
    assert all(restored == saved[0] for restored, _ in loaded)


def test_shards_are_read_by_fewer_ranks_that_have_random_states(tmp_path: Path) -> None:
    saved = forks.values(lambda: save(tmp_path, 1, 4), 4)
    for replicate, shard in ((1, 2), (2, 1), (1, 1)):
        loaded = forks.values(lambda r=replicate, s=shard: load(tmp_path, r, s), replicate * shard)
        assert all(restored == saved[0] for restored, _ in loaded)


def test_the_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    def uninterrupted() -> dict[str, Any]:
        model, optimizer = build(1, 2)
        step(model, optimizer, 3)
        step(model, optimizer, 2)
        return whole(model, optimizer)

    forks.values(lambda: save(tmp_path, 1, 2), 2)
    after = [after for _, after in forks.values(lambda: load(tmp_path, 1, 2), 2)]
    assert after == forks.values(uninterrupted, 2)


def test_units_inside_units_and_containers_without_a_forward(tmp_path: Path) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + sum(expert(x) for expert in self.experts)

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stages = nn.ModuleList([nn.ModuleList([Block(), Block()])])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for stage in self.stages:
                for block in stage:
                    x = block(x)
            return x

    def work() -> float:
        model = on_mesh(Deep(), MeshShape(1, 2))
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        return loss.item()

    assert len(set(forks.values(work, 2))) == 1


def test_a_parameter_without_a_dimension_is_refused_by_name() -> None:
    def work() -> str:
        model = nn.Linear(2, 2)
        model.scale = nn.Parameter(torch.tensor(1.0))
        try:
            on_mesh(model, MeshShape(1, 2))
        except keepstep.ConfigError as error:
            return str(error)
        return "sharded"

    assert all("scale has no dimension" in message for message in forks.values(work, 2))
