import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from keepstep.errors import StateError
from keepstep.state.names import named_tensors, names_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.module = nn.Linear(3, 2)  # a name that wrappers use too

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(self.first(x))


EXPECTED = ["first.weight", "first.bias", "module.weight", "module.bias"]


def names(model: nn.Module) -> list[str]:
    assert list(names_of([model]).parameters.values()) == [name for name, _ in named_tensors([model])]
    return [name for name, _ in named_tensors([model])]


def test_wrappers_leave_no_trace() -> None:
    assert names(Net()) == EXPECTED
    assert names(torch.compile(Net())) == EXPECTED
    assert names(nn.DataParallel(Net())) == EXPECTED
    inside = Net()
    inside.first = checkpoint_wrapper(inside.first)
    assert names(inside) == EXPECTED
    compiled = Net()
    compiled.first = torch.compile(compiled.first)
    assert names(compiled) == EXPECTED


def test_values_are_those_that_live_in_the_model() -> None:
    model = Net()
    assert dict(named_tensors([model]))["first.weight"] is model.first.weight


def test_stages_must_not_share_a_name() -> None:
    first, second = nn.Sequential(), nn.Sequential()
    first.add_module("0", nn.Linear(1, 1))
    second.add_module("1", nn.Linear(1, 1))
    assert [name for name, _ in named_tensors([first, second])] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    with pytest.raises(StateError, match=r"first\.weight"):
        list(named_tensors([Net(), Net()]))


def test_a_shared_parameter_has_its_first_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    names = names_of([model])
    assert list(names.parameters.values()) == list(names.values) == ["0.weight"]
    assert names.aliases == {"1.weight": "0.weight"}
    assert names.names_of("0.weight") == ["1.weight"]


def test_a_declared_tie_gives_a_stage_the_name_of_another_stages_weight() -> None:
    stage = nn.Sequential()
    stage.add_module("head", nn.Linear(2, 2, bias=False))
    names = names_of([stage], {"head.weight": "embed.weight"})
    assert list(names.values) == list(names.parameters.values()) == ["embed.weight"]
    assert names.aliases == {"head.weight": "embed.weight"}
