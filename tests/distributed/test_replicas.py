"""What several ranks hold under one key must be the same, or is kept for each; nothing is settled by chance."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import keepstep
from keepstep.dcp import plan as plan_module
from tests.rig import forks


def checkpointer(folder: Path, **held: Any) -> keepstep.Checkpointer:
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=5)
    return keepstep.Checkpointer(config, keepstep.JobState(**held), world=forks.world, handle_signals=False)


def test_shards_of_two_meshes_under_one_name_are_compared(tmp_path: Path) -> None:
    """Two pipeline stages that name their weights alike, each sharded over its own ranks."""

    def work() -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        model = nn.Sequential(nn.Linear(4, 4))
        for parameter in model.parameters():
            parameter.data.fill_(float(forks.world.rank // 2 + 1))
        fully_shard(model, mesh=mesh["dp"])
        with checkpointer(tmp_path, model=model) as saver:
            saver.save(5)

    ended = forks.run(work, 4)
    assert all(isinstance(end.error, keepstep.ReplicaMismatchError) for end in ended)
    assert "model.0.weight (one value on ranks 1, another on 3)" in str(ended[0].error)


def test_buffers_that_only_some_ranks_hold_and_that_differ(tmp_path: Path) -> None:
    """BatchNorm in the second stage of a pipeline with two data ranks."""

    def stage(value: float) -> nn.Module:
        rank = forks.world.rank
        model = nn.BatchNorm1d(2) if rank > 1 else nn.Linear(2, 2)
        if rank > 1:
            model.running_mean.fill_(value)
        else:
            torch.nn.init.constant_(model.weight, 1.0)
            torch.nn.init.constant_(model.bias, 1.0)
        return nn.ModuleDict({f"stage{rank // 2}": model})

    def saves() -> None:
        with checkpointer(tmp_path, model=stage(forks.world.rank)) as saver:
            saver.save(5)

    def loads() -> float | None:
        model = stage(-1.0)
        with checkpointer(tmp_path, model=model) as loader:
            loader.resume()
        return model["stage1"].running_mean[0].item() if "stage1" in model else None

    forks.values(saves, 4)
    assert forks.values(loads, 4) == [None, None, 2.0, 3.0]
    one = nn.ModuleDict({"stage0": nn.Linear(2, 2), "stage1": nn.BatchNorm1d(2)})
    with checkpointer(tmp_path, model=one) as loader:
        loader.resume()
    assert one["stage1"].running_mean[0] == 2.0


def test_a_rank_that_fails_while_it_compares_is_named_on_all(tmp_path: Path) -> None:
    def work() -> None:
        model = nn.Linear(2, 2)
        torch.nn.init.ones_(model.weight)
        torch.nn.init.ones_(model.bias)
        if forks.world.rank == 2:
            plan_module.bytes_of = broken
        with checkpointer(tmp_path, model=model) as saver:
            saver.save(5)

    ended = forks.run(work, 4, seconds=30)
    assert all(isinstance(end.error, keepstep.SaveError) for end in ended), [repr(end.error) for end in ended]
    assert {str(end.error) for end in ended} == {str(ended[0].error)}
    assert "rank 2 of 4" in str(ended[0].error)
    assert "device lost" in str(ended[0].error)
    assert not list(tmp_path.iterdir())


def broken(tensor: torch.Tensor) -> str:
    raise RuntimeError("device lost")
