"""Trainable-only checkpoints: whatever is frozen when, the run goes on with its own values and with its own base."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import keepstep
from tests.rig import forks


class Net(nn.Module):
    def __init__(self, *, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.base = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()
        self.default = nn.Linear(4, 4, bias=False)
        self.mine = nn.Linear(4, 4, bias=False)
        self.base.requires_grad_(False)
        self.norm.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mine(torch.tanh(self.norm(self.base(x)))) + self.default(x)


def build(**options: Any) -> tuple[Net, dict[str, Any]]:
    model = Net(norm=options.pop("norm", False))
    trained = [p for p in model.parameters() if p.requires_grad] + options.pop("also", [])
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    return model, {"model": model, "optimizer": optimizer, "only_trainable_parameters": True, **options}


def steps(held: dict[str, Any], count: int) -> None:
    for number in range(count):
        held["model"](torch.full((3, 4), 0.1 * number) + torch.arange(3.0)[:, None]).square().mean().backward()
        held["optimizer"].step()
        held["optimizer"].zero_grad()


def checkpointer(folder: Path, held: dict[str, Any]) -> keepstep.Checkpointer:
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=5)
    return keepstep.Checkpointer(config, keepstep.JobState(**held), handle_signals=False)


def test_two_adapters_of_which_one_is_frozen_in_the_middle(tmp_path: Path) -> None:
    model, held = build()
    with checkpointer(tmp_path, held) as saver:
        saver.resume()
        steps(held, 2)
        model.default.weight.requires_grad_(False)  # what it has learnt is nowhere but here
        steps(held, 2)
        saver.save(4)
    again, restored = build()
    again.default.weight.requires_grad_(False)
    with checkpointer(tmp_path, restored) as loader:
        assert loader.resume() == 4
        for name, value in model.named_parameters():
            assert torch.equal(value, again.get_parameter(name)), name
        steps(restored, 1)
        loader.save(5)
    steps(held, 1)
    third, last = build()
    with checkpointer(tmp_path, last) as loader:
        assert loader.resume() == 5
    for name, value in model.named_parameters():
        assert torch.equal(value, third.get_parameter(name)), name


def test_a_weight_that_is_trained_from_now_on_begins_with_its_base_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, held = build()
    with checkpointer(tmp_path, held) as saver:
        saver.resume()
        steps(held, 2)
        saver.save(2)
    model = Net()
    model.base.weight.requires_grad_(True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    restored = {"model": model, "optimizer": optimizer, "only_trainable_parameters": True}
    with checkpointer(tmp_path, restored) as loader:
        assert loader.resume() == 2
    assert "base.weight was frozen when this was saved" in caplog.text
    assert torch.equal(model.base.weight, Net().base.weight)
    assert not optimizer.state.get(model.base.weight)
    assert optimizer.state[model.mine.weight]["step"] == 2


def test_a_parameter_that_never_got_a_gradient(tmp_path: Path) -> None:
    model, held = build()
    with checkpointer(tmp_path, held) as saver:
        saver.resume()
        model.mine(torch.ones(1, 4)).sum().backward()
        held["optimizer"].step()
        saver.save(1)
    _, restored = build()
    with checkpointer(tmp_path, restored) as loader:
        assert loader.resume() == 1
    assert not restored["optimizer"].state.get(restored["model"].default.weight)
    assert restored["optimizer"].state[restored["model"].mine.weight]["step"] == 1


def test_another_base_is_refused_by_name(tmp_path: Path) -> None:
    _, held = build()
    with checkpointer(tmp_path, held) as saver:
        saver.resume()
        saver.save(1)
    model, other = build()
    with torch.no_grad():
        model.base.weight[0, 0] += 1e-3
    with checkpointer(tmp_path, other) as loader, pytest.raises(keepstep.StateMismatchError, match=r"base\.weight"):
        loader.resume()


def test_buffers_that_change_are_refused_or_saved(tmp_path: Path) -> None:
    _, held = build(norm=True)
    with checkpointer(tmp_path / "refused", held) as saver:
        saver.resume()
        steps(held, 1)
        with pytest.raises(keepstep.StateError, match=r"norm\.running_mean.*\(with_buffers"):
            saver.save(1)
    model, held = build(norm=True, with_buffers=True)
    with checkpointer(tmp_path / "saved", held) as saver:
        saver.resume()
        steps(held, 1)
        saver.save(1)
    again, restored = build(norm=True, with_buffers=True)
    with checkpointer(tmp_path / "saved", restored) as loader:
        assert loader.resume() == 1
    for name, value in model.named_buffers():
        assert torch.equal(value, again.get_buffer(name)), name


def sharded(shift: float = 0.0) -> dict[str, Any]:
    """Two layers over all ranks, or plain on one; the first is frozen."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    with torch.no_grad():
        model[0].weight[4, 4] += shift
    if forks.world.size > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (forks.world.size,)))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    return {"model": model, "optimizer": optimizer, "only_trainable_parameters": True}


def resume(folder: Path, held: dict[str, Any]) -> int:
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=5)
    state = keepstep.JobState(**held)
    with keepstep.Checkpointer(config, state, world=forks.world, handle_signals=False) as checkpointer:
        start = checkpointer.resume()
        if not start:
            checkpointer.save(5)
        return start


def test_the_base_is_compared_under_any_layout(tmp_path: Path) -> None:
    assert forks.values(lambda: resume(tmp_path, sharded()), 2) == [0, 0]
    assert forks.values(lambda: resume(tmp_path, sharded()), 4) == [5] * 4
    assert resume(tmp_path, sharded()) == 5
    for ranks in (1, 2):
        ended = forks.run(lambda: resume(tmp_path, sharded(0.5)), ranks)
        assert all("frozen weights are others" in str(end.error) for end in ended)
        assert all("0.weight" in str(end.error) for end in ended)


def test_a_sharded_weight_that_was_trained_between_two_saves_is_held(tmp_path: Path) -> None:
    def work() -> bool:
        held = sharded()
        config = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=5)
        state = keepstep.JobState(**held)
        with keepstep.Checkpointer(config, state, world=forks.world, handle_signals=False) as checkpointer:
            checkpointer.resume()
            with torch.no_grad():
                held["model"][0].weight.add_(9)
            checkpointer.save(5)
        again = sharded()
        resume(tmp_path, again)
        return torch.equal(again["model"][0].weight.full_tensor(), held["model"][0].weight.full_tensor())

    assert all(forks.values(work, 2))
