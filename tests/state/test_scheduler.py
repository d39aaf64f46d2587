"""torch's schedulers: the position from the checkpoint, the horizon and the base rates from the present object."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as lrs

import keepstep
from keepstep.errors import StateMismatchError

Make = Callable[[torch.optim.Optimizer, int], Any]


def sequential(optimizer: torch.optim.Optimizer, total: int) -> Any:
    warm_up = lrs.LinearLR(optimizer, 0.1, total_iters=4)
    return lrs.SequentialLR(optimizer, [warm_up, lrs.CosineAnnealingLR(optimizer, total - 4)], [4])


SCHEDULERS: dict[str, Make] = {
    "CosineAnnealingLR": lambda o, total: lrs.CosineAnnealingLR(o, total),
    "LinearLR": lambda o, total: lrs.LinearLR(o, 1.0, 0.0, total_iters=total),
    "OneCycleLR": lambda o, total: lrs.OneCycleLR(o, max_lr=[0.3, 0.6], total_steps=total),
    "StepLR": lambda o, total: lrs.StepLR(o, total // 4),
    "MultiStepLR": lambda o, total: lrs.MultiStepLR(o, [total // 4, total // 2]),
    "ExponentialLR": lambda o, total: lrs.ExponentialLR(o, 1 - 1 / total),
    "PolynomialLR": lambda o, total: lrs.PolynomialLR(o, total, power=2.0),
    "CosineAnnealingWarmRestarts": lambda o, total: lrs.CosineAnnealingWarmRestarts(o, total // 4, 2),
    "LambdaLR": lambda o, total: lrs.LambdaLR(o, lambda step: max(0.0, 1 - step / total)),
    "SequentialLR": sequential,
    "CyclicLR": lambda o, total: lrs.CyclicLR(o, 0.01, 0.1, step_size_up=total // 4),
}


def build(make: Make, total: int, lr: float = 0.1) -> dict[str, Any]:
    model = nn.Linear(2, 2)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 2 * lr}]
    optimizer = torch.optim.SGD(groups, lr=lr, momentum=0.9)
    return {"model": model, "optimizer": optimizer, "lr_scheduler": make(optimizer, total)}


def rates(parts: dict[str, Any], steps: int) -> list[Any]:
    """The options of each group at each of the next steps."""
    found = []
    for _ in range(steps):
        found.append([(group["lr"], group["momentum"]) for group in parts["optimizer"].param_groups])
        parts["optimizer"].step()
        parts["lr_scheduler"].step()
    return found


def checkpointer(folder: Path, parts: dict[str, Any]) -> keepstep.Checkpointer:
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=5)
    return keepstep.Checkpointer(config, keepstep.JobState(**parts))


def resumed(folder: Path, make: Make, stop: int, total: int, new_total: int, lr: float = 0.1) -> dict[str, Any]:
    parts = build(make, total)
    rates(parts, stop)
    with checkpointer(folder, parts) as saver:
        saver.save(stop)
    again = build(make, new_total, lr)
    with checkpointer(folder, again) as loader:
        assert loader.resume() == stop
    return again


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("stop", [0, 1, 3, 4, 20, 39])
def test_the_rates_go_on_bit_for_bit(tmp_path: Path, kind: str, stop: int) -> None:
    whole = rates(build(SCHEDULERS[kind], 40), 40)
    parts = resumed(tmp_path, SCHEDULERS[kind], stop, 40, 40)
    assert rates(parts, 40 - stop) == whole[stop:]


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("stop", [3, 12, 39])
def test_a_changed_total_is_followed_from_the_saved_position(
    tmp_path: Path, kind: str, stop: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = rates(build(SCHEDULERS[kind], 60), 60)
    parts = resumed(tmp_path, SCHEDULERS[kind], stop, 40, 60)
    assert rates(parts, 60 - stop) == whole[stop:]
    if kind != "LambdaLR":  # a function has nothing to compare
        assert "set up in another way when this was saved" in caplog.text


def test_a_changed_base_rate_is_followed_and_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make = SCHEDULERS["CosineAnnealingLR"]
    whole = rates(build(make, 40, lr=0.3), 40)
    parts = resumed(tmp_path, make, 10, 40, 40, lr=0.3)
    assert rates(parts, 30) == whole[10:]
    assert "base_lrs [0.1, 0.2] when saved, [0.3, 0.6] now" in caplog.text


def test_a_total_that_the_position_is_beyond_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StateMismatchError, match=r"OneCycleLR .* does not reach the saved position"):
        resumed(tmp_path, SCHEDULERS["OneCycleLR"], 30, 40, 20)


def test_a_scheduler_that_has_been_stepped_cannot_be_set_up_anew(tmp_path: Path) -> None:
    make = SCHEDULERS["CosineAnnealingLR"]
    parts = build(make, 40)
    with checkpointer(tmp_path, parts) as saver:
        saver.save(0)
    again = build(make, 60)
    rates(again, 2)
    with checkpointer(tmp_path, again) as loader, pytest.raises(StateMismatchError, match="create it anew"):
        loader.resume()


@pytest.mark.parametrize("patience", [2, 3])
def test_a_plateau_scheduler_remembers_what_it_has_seen(tmp_path: Path, patience: int) -> None:
    def plateau(optimizer: torch.optim.Optimizer, total: int) -> Any:
        return lrs.ReduceLROnPlateau(optimizer, factor=0.5, patience=patience)

    losses = [5.0, 4.0, 4.0, 4.0, 4.0, 4.0, 3.0, 3.0, 3.0, 3.0, 3.0]

    def run(parts: dict[str, Any], part: list[float]) -> list[Any]:
        found = []
        for loss in part:
            parts["lr_scheduler"].step(loss)
            found.append((parts["optimizer"].param_groups[0]["lr"], parts["lr_scheduler"].num_bad_epochs))
        return found

    whole = run(build(plateau, 0), losses)
    for stop in range(len(losses)):
        parts = build(plateau, 0)
        run(parts, losses[:stop])
        with checkpointer(tmp_path / str(stop), parts) as saver:
            saver.save(stop)
        again = build(plateau, 0)
        with checkpointer(tmp_path / str(stop), again) as loader:
            loader.resume()
        assert run(again, losses[stop:]) == whole[stop:]


def chained(optimizer: torch.optim.Optimizer, total: int) -> Any:
    return lrs.ChainedScheduler([lrs.ConstantLR(optimizer, 0.5, 3), lrs.CosineAnnealingLR(optimizer, total)])


def sequential_of_functions(optimizer: torch.optim.Optimizer, total: int) -> Any:
    warm_up = lrs.LinearLR(optimizer, 0.1, total_iters=4)
    return lrs.SequentialLR(optimizer, [warm_up, lrs.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))], [4])


def multiplied(optimizer: torch.optim.Optimizer, total: int) -> Any:
    return lrs.MultiplicativeLR(optimizer, lambda step: 1 - 1 / total)


@pytest.mark.parametrize("make", [chained, sequential_of_functions, multiplied])
@pytest.mark.parametrize(("total", "lr"), [(20, 0.1), (30, 0.1), (20, 0.3)])
def test_nested_schedulers_and_functions_follow_the_present_settings(
    tmp_path: Path, make: Make, total: int, lr: float
) -> None:
    parts = resumed(tmp_path, make, stop=7, total=20, new_total=total, lr=lr)
    fresh = build(make, total, lr)
    rates(fresh, 7)
    assert rates(parts, 5) == rates(fresh, 5)


@pytest.mark.parametrize(
    ("make", "changes", "warned"),
    [
        (None, {"lr": 0.3}, "optimizer option lr is 0.1 in the checkpoint and 0.3"),
        (lambda o, total: lrs.StepLR(o, 4), {"momentum": 0.5}, "option momentum is 0.9 in the checkpoint and 0.5"),
        (lambda o, total: lrs.StepLR(o, 4), {}, ""),
        (lambda o, total: lrs.OneCycleLR(o, max_lr=0.3, total_steps=20), {}, ""),
    ],
)
def test_options_that_no_scheduler_moves_are_listed_when_they_differ(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Any, changes: dict[str, float], warned: str
) -> None:
    def parts(**options: float) -> dict[str, Any]:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), **({"lr": 0.1, "momentum": 0.9} | options))
        return {"model": model, "optimizer": optimizer, "lr_scheduler": make and make(optimizer, 20)}

    with checkpointer(tmp_path, parts()) as saver:
        saver.save(5)
    with checkpointer(tmp_path, parts(**changes)) as loader:
        loader.resume()
    assert warned in caplog.text
    assert bool(warned) == ("optimizer option" in caplog.text)
