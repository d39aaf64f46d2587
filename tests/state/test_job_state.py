from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import keepstep
from keepstep.errors import StateError


def checkpointer(tmp_path: Path, **parts: Any) -> keepstep.Checkpointer:
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=5)
    return keepstep.Checkpointer(config, keepstep.JobState(**parts))


class Holder:
    """Any object with the two methods, nothing inherited."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def round_trip(tmp_path: Path, **parts: Any) -> dict[str, Holder]:
    with checkpointer(tmp_path, **parts) as saver:
        saver.save(5)
    fresh = {name: Holder("not loaded") for name in parts}
    with checkpointer(tmp_path, **fresh) as loader:
        assert loader.resume() == 5
    return fresh


@pytest.mark.parametrize(
    "state",
    [
        {"a": 1, "b": [1, {"c": torch.arange(3)}]},
        {"a.b": torch.ones(1), "a": {"c": 2}},
        {},
        [],
        None,
        5,
        [torch.ones(2), 3],
        {1: "a number for a name"},
        {"__value__": 3},
        {"": 1},
        {"__names__": 3},
        {"z": 1, "a": torch.ones(1), "m": {"y": 1, "b": 2}},
        {"rng": np.random.default_rng(3).bit_generator.state},
    ],
    ids=repr,
)
@pytest.mark.parametrize("part", ["task", "lr_scheduler", "metrics", "tracker", "data"])
def test_any_state_of_plain_values_comes_back(tmp_path: Path, part: str, state: Any) -> None:
    back = round_trip(tmp_path, **{part: Holder(state)})[part].state
    assert repr(back) == repr(state)


def test_random_states_go_on_where_they_were(tmp_path: Path) -> None:
    import random

    def draw() -> list[Any]:
        return [random.random(), np.random.rand(), np.random.randn(), torch.rand(1).item(), torch.randn(1).item()]

    draw()
    with checkpointer(tmp_path, task=Holder(1)) as saver:
        saver.save(5)
    expected = [draw() for _ in range(3)]
    with checkpointer(tmp_path, task=Holder(2)) as loader:
        loader.resume()
    assert [draw() for _ in range(3)] == expected


def test_random_states_are_restored_last(tmp_path: Path) -> None:
    class Draws(Holder):
        def load_state_dict(self, state: Any) -> None:
            torch.rand(100)

    with checkpointer(tmp_path, task=Holder({"a": torch.ones(3)}), data=Holder(1)) as saver:
        saver.save(5)
    expected = torch.rand(4)
    with checkpointer(tmp_path, task=Draws({"a": torch.zeros(3)}), data=Draws(1)) as loader:
        loader.resume()
    assert torch.equal(torch.rand(4), expected)


def test_extra_state_of_modules(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self, extra: Any) -> None:
            super().__init__()
            self.inner = nn.Linear(1, 1)
            self.extra = extra

        def get_extra_state(self) -> Any:
            return self.extra

        def set_extra_state(self, state: Any) -> None:
            self.extra = state

    for number, extra in enumerate([{"scale": 2.5, "history": torch.arange(3)}, torch.ones(2), "text"]):
        folder = tmp_path / str(number)
        with checkpointer(folder, model=nn.Sequential(Net(extra))) as saver:
            saver.save(5)
        other = nn.Sequential(Net(torch.zeros(2) if isinstance(extra, torch.Tensor) else None))
        with checkpointer(folder, model=other) as loader:
            loader.resume()
        assert repr(other[0].extra) == repr(extra)


def test_several_stages_and_optimizers_merge_under_their_names(tmp_path: Path) -> None:
    def build() -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
        stages = [nn.ModuleDict({"0": nn.Linear(2, 2)}), nn.ModuleDict({"1": nn.Linear(2, 2)})]
        return stages, [torch.optim.AdamW(stage.parameters(), lr=0.1 * (i + 1)) for i, stage in enumerate(stages)]

    stages, optimizers = build()
    stages[1]["1"](stages[0]["0"](torch.ones(1, 2))).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    with checkpointer(tmp_path, model=stages, optimizer=optimizers) as saver:
        saver.save(5)
    others, restored = build()
    with checkpointer(tmp_path, model=others[::-1], optimizer=restored[::-1]) as loader:
        loader.resume()
    for one, other, optimizer, again in zip(stages, others, optimizers, restored, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
        assert repr(optimizer.state_dict()) == repr(again.state_dict())


def test_bits_stay_bits(tmp_path: Path) -> None:
    values = {
        "bf16": torch.randn(5).bfloat16(),
        "complex": torch.randn(2, dtype=torch.complex64),
        "bool": torch.tensor([True, False]),
        "int8": torch.tensor([-128, 127], dtype=torch.int8),
        "nan": torch.tensor([0x7FC12345, -0x80000000], dtype=torch.int32).view(torch.float32),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "transposed": torch.arange(6.0).reshape(2, 3).t(),
        "view": torch.arange(1000.0)[10:12],
        "expanded": torch.ones(1, 3).expand(4, 3),
        "float8": torch.randn(4).to(torch.float8_e4m3fn),
    }
    back = round_trip(tmp_path, task=Holder(values))["task"].state
    for name, value in values.items():
        assert back[name].dtype == value.dtype
        assert back[name].shape == value.shape
        raw = [one.contiguous().flatten().view(torch.uint8).tolist() for one in (back[name], value)]
        assert raw[0] == raw[1], name
    size = (tmp_path / "save-5" / "__0_0.distcp").stat().st_size
    assert size < 11 * 2500 + 20_000  # the view did not bring its whole storage


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"model": 3}, "model: a int is no Module"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))])}, "an optimizer needs its model"),
        ({"model": nn.Linear(1, 1), "optimizer": "adam"}, "optimizer: a str is no Optimizer"),
        ({"task": object()}, "task: a object has no state_dict and load_state_dict"),
        ({"data": [1]}, "data: a list has no state_dict"),
    ],
)
def test_a_part_that_is_not_what_its_name_says_is_refused(parts: dict[str, Any], text: str) -> None:
    with pytest.raises(StateError, match=text):
        keepstep.JobState(**parts)


class Counting(nn.Module):
    """Extra state that is a tensor made anew at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1)
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor([self.count])

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.count = int(state)


@pytest.mark.parametrize("wrap", [lambda m: m, torch.compile, nn.DataParallel])
def test_extra_state_is_handed_over_whatever_wraps_the_module(tmp_path: Path, wrap: Any) -> None:
    inner = Counting()
    inner.count = 7
    with checkpointer(tmp_path, model=nn.ModuleDict({"part": wrap(inner)})) as saver:
        saver.save(5)
    other = Counting()
    with checkpointer(tmp_path, model=nn.ModuleDict({"part": wrap(other)})) as loader:
        loader.resume()
    assert other.count == 7


def test_a_loader_marked_per_rank_is_the_loader(tmp_path: Path) -> None:
    with checkpointer(tmp_path, data=keepstep.PerRank(Holder({"at": 3}))) as saver:
        saver.save(5)
    loader = Holder()
    with checkpointer(tmp_path, data=loader) as resumed:
        resumed.resume()
    assert loader.state == {"at": 3}
