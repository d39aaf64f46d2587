"""A user's own DTensor placements: any in, any out, and no rank reads more than it needs."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

import keepstep
from tests.rig import forks
from tests.rig.layouts import Reads, within_bounds

# Mesh shape and placements. 301 rows and 70 columns are divided evenly by nothing here.
PLACEMENTS: dict[str, tuple[tuple[int, ...], Any]] = {
    "rows": ((4,), [Shard(0)]),
    "columns": ((4,), [Shard(1)]),
    "replicated": ((4,), [Replicate()]),
    "rows x columns": ((2, 2), [Shard(0), Shard(1)]),
    "columns x rows": ((2, 2), [Shard(1), Shard(0)]),
    "rows x rows": ((2, 2), [Shard(0), Shard(0)]),
    "replicated x columns": ((2, 2), [Replicate(), Shard(1)]),
}


def whole() -> dict[str, torch.Tensor]:
    torch.manual_seed(4)
    return {"matrix": torch.randn(301, 70), "cube": torch.randn(5, 6, 7), "few": torch.randn(2, 3)}


@cache
def mesh(shape: tuple[int, ...]) -> DeviceMesh:
    return init_device_mesh("cpu", shape)


def held(name: str | None, *, zero: bool) -> nn.Module:
    """The tensors of `whole` as parameters under a placement; plain ones for None."""
    module = nn.Module()
    for key, tensor in whole().items():
        value = torch.zeros_like(tensor) if zero else tensor
        if name is not None:
            shape, placements = PLACEMENTS[name]
            value = distribute_tensor(value, mesh(shape), placements)
        module.register_parameter(key, nn.Parameter(value))
    return module


def checkpointer(folder: Path, module: nn.Module) -> keepstep.Checkpointer:
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=5)
    return keepstep.Checkpointer(config, keepstep.JobState(model=module), world=forks.world, handle_signals=False)


def save(folder: Path, name: str) -> None:
    with checkpointer(folder, held(name, zero=False)) as saver:
        saver.save(1)


def load(folder: Path, name: str | None) -> tuple[bool, dict[str, int]]:
    module, reads = held(name, zero=True), Reads()
    with reads.watched(), checkpointer(folder, module) as loader:
        loader.resume()
    values = {key: p.detach().full_tensor() if name else p.detach() for key, p in module.named_parameters()}
    return all(torch.equal(values[key], tensor) for key, tensor in whole().items()), reads.found


def check(folder: Path, saved: str, loaded: list[str]) -> None:
    def everything() -> list[tuple[str, bool, dict[str, int]]]:
        save(folder, saved)
        return [(name, *load(folder, name)) for name in loaded]

    for results in forks.values(everything, 4):
        for name, equal, reads in results:
            assert equal, name
            assert within_bounds(reads), (name, reads)
    equal, reads = load(folder, None)
    assert equal
    assert within_bounds(reads)


@pytest.mark.parametrize("saved", PLACEMENTS)
def test_any_placement_loads_under_some_others(tmp_path: Path, saved: str) -> None:
    """Each is saved once, and loaded three times: under itself, the one after it, and one of the other mesh."""
    names = list(PLACEMENTS)
    check(tmp_path, saved, [names[(names.index(saved) + far) % len(names)] for far in (0, 1, 3)])


@pytest.mark.layouts
@pytest.mark.parametrize("saved", PLACEMENTS)
def test_any_placement_loads_under_any_other(tmp_path: Path, saved: str) -> None:
    check(tmp_path, saved, list(PLACEMENTS))


def test_a_sum_that_is_not_made_yet_is_refused(tmp_path: Path) -> None:
    def work() -> None:
        module = nn.Module()
        mesh = init_device_mesh("cpu", (2,))
        partial = torch.distributed.tensor.DTensor.from_local(torch.ones(3), mesh, [Partial()])
        module.register_parameter("w", nn.Parameter(partial))
        with checkpointer(tmp_path, module) as saver:
            saver.save(1)

    ended = forks.run(work, 2)
    assert all("model.w" in str(end.error) for end in ended)
    assert not list(tmp_path.glob("save-*"))
