import pytest
import torch
from torch import nn

from keepstep.config.training import LRSchedulerConfig
from keepstep.job.lr_schedule import PhaseLR

PHASES = LRSchedulerConfig.model_validate({"phases": [{"percent": 10, "to": 1.0}, {"rest": True, "to": 0.0}]})


def build(total: int, lr: object = 0.1) -> tuple[torch.optim.Optimizer, PhaseLR]:
    model = nn.Linear(1, 2)
    groups = [{"params": [model.weight], "lr": lr}, {"params": [model.bias], "lr": 0.5}]
    optimizer = torch.optim.AdamW(groups)
    return optimizer, PhaseLR(optimizer, PHASES, total)


def test_each_group_follows_the_curve_from_its_own_base() -> None:
    optimizer, scheduler = build(20)
    rates = []
    for _ in range(4):
        rates.append([group["lr"] for group in optimizer.param_groups])
        assert scheduler.get_last_lr() == rates[-1]
        scheduler.step()
    assert rates == [[0.0, 0.0], [0.05, 0.25], [0.1, 0.5], [0.1 * (17 / 18), 0.5 * (17 / 18)]]


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 10, 19])
def test_the_position_is_applied_exactly_once_however_often_it_is_loaded(stop: int) -> None:
    _, whole = build(20)
    for _ in range(stop):
        whole.step()
    optimizer, scheduler = build(20)
    for _ in range(2):
        scheduler.load_state_dict(whole.state_dict())
    assert [group["lr"] for group in optimizer.param_groups] == whole.get_last_lr()
    scheduler.step()
    whole.step()
    assert scheduler.get_last_lr() == whole.get_last_lr()


def test_the_present_total_and_base_count_and_not_the_saved_ones() -> None:
    _, short = build(20)
    for _ in range(12):
        short.step()
    _, long = build(40, lr=0.2)
    long.load_state_dict(short.state_dict())
    _, reference = build(40, lr=0.2)
    for _ in range(12):
        reference.step()
    assert long.get_last_lr() == reference.get_last_lr()


def test_a_rate_that_is_a_tensor_stays_the_same_tensor() -> None:
    rate = torch.tensor(0.1)
    optimizer, scheduler = build(20, rate)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.05)
