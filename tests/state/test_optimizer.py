"""Optimizer state by name: it arrives in a fresh optimizer, and no weight moves."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import keepstep
from keepstep.errors import StateError, StateMismatchError

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1)),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 1) -> None:
    for i in range(count):
        optimizer.zero_grad()
        model(torch.full((2, 3), 0.5 + i)).square().sum().backward()
        optimizer.step()


def checkpointer(tmp_path: Path, **parts: Any) -> keepstep.Checkpointer:
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=5)
    return keepstep.Checkpointer(config, keepstep.JobState(**parts))


def same(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    return bool(first == second) and type(first) is type(second)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_arrives_in_a_fresh_optimizer_and_training_goes_on_bit_for_bit(tmp_path: Path, kind: str) -> None:
    model = nn.Linear(3, 4)
    optimizer = OPTIMIZERS[kind](model.parameters())
    step(model, optimizer, 3)
    with checkpointer(tmp_path, model=model, optimizer=optimizer) as saver:
        saver.save(3)
    fresh = nn.Linear(3, 4)
    restored = OPTIMIZERS[kind](fresh.parameters())
    with checkpointer(tmp_path, model=fresh, optimizer=restored) as loader:
        assert loader.resume() == 3
    assert same(restored.state_dict(), optimizer.state_dict())
    assert torch.equal(fresh.weight, model.weight)  # no step was taken, weight decay did not act
    step(model, optimizer, 2)
    step(fresh, restored, 2)
    assert torch.equal(fresh.weight, model.weight)
    assert same(restored.state_dict(), optimizer.state_dict())


def test_an_optimizer_that_never_stepped_comes_back_empty(tmp_path: Path) -> None:
    model = nn.Linear(3, 4)
    with checkpointer(tmp_path, model=model, optimizer=torch.optim.AdamW(model.parameters())) as saver:
        saver.save(0)
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    with checkpointer(tmp_path, model=model, optimizer=optimizer) as loader:
        loader.resume()
    assert dict(optimizer.state) == {}


def test_a_parameter_that_never_got_a_gradient(tmp_path: Path) -> None:
    def build() -> tuple[nn.ModuleDict, torch.optim.Optimizer]:
        model = nn.ModuleDict({"used": nn.Linear(3, 4), "unused": nn.Linear(3, 4)})
        return model, torch.optim.AdamW(model.parameters())

    model, optimizer = build()
    step(model["used"], optimizer, 2)
    with checkpointer(tmp_path, model=model, optimizer=optimizer) as saver:
        saver.save(2)
    fresh, restored = build()
    with checkpointer(tmp_path, model=fresh, optimizer=restored) as loader:
        loader.resume()
    assert same(restored.state_dict(), optimizer.state_dict())
    assert len(restored.state) == 2


def test_groups_in_another_order_get_their_own_state(tmp_path: Path) -> None:
    def build(reverse: bool) -> tuple[nn.Linear, torch.optim.Optimizer]:
        model = nn.Linear(3, 3)
        groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.2}]
        return model, torch.optim.AdamW(groups[::-1] if reverse else groups)

    model, optimizer = build(False)
    step(model, optimizer, 2)
    with checkpointer(tmp_path, model=model, optimizer=optimizer) as saver:
        saver.save(2)
    other, restored = build(True)
    with checkpointer(tmp_path, model=other, optimizer=restored) as loader:
        loader.resume()
    assert [group["lr"] for group in restored.param_groups] == [0.2, 0.1]
    for name in ("weight", "bias"):
        assert same(restored.state[getattr(other, name)], optimizer.state[getattr(model, name)])


def test_parameters_grouped_in_another_way_are_refused(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.2}]
    with checkpointer(tmp_path, model=model, optimizer=torch.optim.SGD(groups)) as saver:
        saver.save(1)
    one_group = torch.optim.SGD(model.parameters(), lr=0.3)
    with (
        checkpointer(tmp_path, model=model, optimizer=one_group) as loader,
        pytest.raises(StateMismatchError, match="grouped in another way"),
    ):
        loader.resume()


def test_a_parameter_of_no_registered_model_is_refused_by_its_place(tmp_path: Path) -> None:
    model, stray = nn.Linear(2, 2), nn.Parameter(torch.zeros(7))
    optimizer = torch.optim.SGD([*model.parameters(), stray])
    with (
        checkpointer(tmp_path, model=model, optimizer=optimizer) as saver,
        pytest.raises(StateError, match=r"parameter 2 of group 0 .*\(7,\)"),
    ):
        saver.save(1)


def test_parameter_names_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(2))
            self.b = nn.ParameterDict({"step": nn.Parameter(torch.ones(3)), "x": nn.Parameter(torch.ones(4))})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a.sum() + self.b["step"].sum() * x.sum() + self.b["x"].sum()

    model, other = Net(), Net()
    optimizer, restored = (torch.optim.AdamW(m.parameters()) for m in (model, other))
    step(model, optimizer, 2)
    with checkpointer(tmp_path, model=model, optimizer=optimizer) as saver:
        saver.save(2)
    with checkpointer(tmp_path, model=other, optimizer=restored) as loader:
        loader.resume()
    assert same(restored.state_dict(), optimizer.state_dict())


def test_state_that_belongs_to_no_parameter_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.state["global"] = {"count": 3}
    with (
        checkpointer(tmp_path, model=model, optimizer=optimizer) as saver,
        pytest.raises(StateError, match="state for 'global'"),
    ):
        saver.save(1)


def test_slots_that_are_lists_of_tensors_come_back_once(tmp_path: Path) -> None:
    def build() -> tuple[nn.Linear, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        return model, torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

    def run(model: nn.Linear, optimizer: torch.optim.Optimizer, count: int) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).square().sum()
            loss.backward()
            return loss

        for _ in range(count):
            optimizer.step(closure)

    model, optimizer = build()
    run(model, optimizer, 2)
    with checkpointer(tmp_path, model=model, optimizer=optimizer) as saver:
        saver.save(2)
    fresh, restored = build()
    with checkpointer(tmp_path, model=fresh, optimizer=restored) as loader:
        loader.resume()
    state, back = (next(iter(o.state.values())) for o in (optimizer, restored))
    assert state.keys() == back.keys()
    run(model, optimizer, 2)
    run(fresh, restored, 2)
    assert torch.equal(fresh.weight, model.weight)


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"capturable": True}])
def test_slots_are_made_where_the_optimizer_keeps_them(options: dict[str, Any]) -> None:
    from keepstep.dcp.entries import Stored
    from keepstep.state.names import names_of
    from keepstep.state.optimizer import OptimizerComponent

    # The meta device stands for a GPU: nothing is computed, only places are looked at.
    with torch.device("meta"):
        model = nn.Linear(2, 2)
        model.scale = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.param_groups[0].update(options)
    scalar, matrix = Stored(torch.Size([]), torch.float32), Stored(torch.Size([2, 2]), torch.float32)
    stored = {f"optimizer.param_groups.{name}.lr": Stored() for name in ("weight", "bias", "scale")}
    stored |= {f"optimizer.slots.{name}": Stored() for name in ("weight", "bias", "scale")}
    stored |= {"optimizer.state.weight.exp_avg": matrix, "optimizer.state.weight.step": scalar}
    stored |= {"optimizer.state.scale.exp_avg": scalar, "optimizer.state.scale.step": scalar}
    stored["optimizer.state.weight.row"] = Stored(torch.Size([2]), torch.float32)
    request = OptimizerComponent([optimizer], lambda: names_of([model])).request(stored)
    places = {key.removeprefix("optimizer.state."): tensor.device.type for key, tensor in request.tensors.items()}
    step = "meta" if options else "cpu"
    expected = {"weight.exp_avg": "meta", "weight.row": "meta", "scale.exp_avg": "meta"}
    assert places == expected | {"weight.step": step, "scale.step": step}
