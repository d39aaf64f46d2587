"""After a load everything registered was restored and nothing was left behind, or an error names what."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import keepstep
from tests.rig import forks
from tests.rig.edit import drop, edit_metadata, swap


class Net(nn.Module):
    def __init__(self, *, tied: bool = True, second: str = "second") -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.first = nn.Linear(4, 4)
        self.add_module(second, nn.Linear(4, 4))
        self._second = second
        self.head = nn.Linear(4, 5, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(getattr(self, self._second)(torch.tanh(self.first(self.embed(ids)))))


class Notes:
    def __init__(self, value: Any = 1) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def parts(model: nn.Module | None = None, steps: int = 0, **more: Any) -> dict[str, Any]:
    torch.manual_seed(1)
    model = model if model is not None else Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.arange(3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer, **more}


def checkpointer(folder: Path, held: dict[str, Any]) -> keepstep.Checkpointer:
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=5)
    return keepstep.Checkpointer(config, keepstep.JobState(**held), world=forks.world, handle_signals=False)


def save(folder: Path, held: dict[str, Any]) -> Path:
    with checkpointer(folder, held) as saver:
        saver.save(5)
    return folder / "save-5"


def load(folder: Path, held: dict[str, Any]) -> dict[str, Any]:
    with checkpointer(folder, held) as loader:
        assert loader.resume() == 5
    return held


def refused(folder: Path, held: dict[str, Any], *words: str) -> None:
    before = [p.detach().clone() for p in held["model"].parameters()]
    with pytest.raises(keepstep.StateMismatchError) as caught:
        load(folder, held)
    for word in words:
        assert word in str(caught.value)
    assert all(torch.equal(a, b) for a, b in zip(before, held["model"].parameters(), strict=True)), "nothing changed"


def test_a_moment_that_is_missing_is_named(tmp_path: Path) -> None:
    edit_metadata(save(tmp_path, parts(steps=2)), drop("optimizer.state.first.weight.exp_avg"))
    refused(tmp_path, parts(), "lacks moments that were saved: optimizer.state.first.weight.exp_avg")


def test_an_extra_key_is_named(tmp_path: Path) -> None:
    save(tmp_path, parts(task=Notes()))
    refused(tmp_path, parts(), "nobody takes it: task.__names__, task.value")


def test_a_renamed_layer_is_named_on_both_sides(tmp_path: Path) -> None:
    save(tmp_path, parts(steps=1))
    refused(
        tmp_path,
        parts(Net(second="other")),
        "not in the checkpoint: model.other.weight",
        "model.second.weight",
        "renamed",
    )


def test_entries_that_lie_where_others_do_are_damage(tmp_path: Path) -> None:
    """Two layers of one shape whose moments were exchanged: nothing but the index can tell."""
    pair = ("optimizer.state.first.weight.exp_avg", "optimizer.state.second.weight.exp_avg")
    edit_metadata(save(tmp_path, parts(steps=2)), swap(*pair))
    with pytest.raises(keepstep.DamagedCheckpointError) as caught:
        load(tmp_path, parts())
    assert "is said to lie where" in str(caught.value)
    assert any(key in str(caught.value) for key in pair)


def test_moments_follow_their_names_whatever_the_order_of_the_groups(tmp_path: Path) -> None:
    held = parts(steps=2)
    save(tmp_path, held)
    other = parts()
    other["optimizer"] = torch.optim.AdamW([*reversed(list(other["model"].parameters()))], lr=0.1)
    load(tmp_path, other)
    names = dict(held["model"].named_parameters())
    for name, parameter in other["model"].named_parameters():
        for slot, value in other["optimizer"].state[parameter].items():
            assert torch.equal(value, held["optimizer"].state[names[name]][slot]), (name, slot)


def test_tied_weights_are_stored_once_under_both_names(tmp_path: Path) -> None:
    tied = save(tmp_path / "a", parts(steps=1))
    apart = save(tmp_path / "b", parts(Net(tied=False), steps=1))
    size = [sum(file.stat().st_size for file in folder.glob("*.distcp")) for folder in (tied, apart)]
    assert size[0] < size[1] - 3 * 5 * 4 * 4  # the weight and two moments
    target = {"model.embed.weight": torch.zeros(5, 4), "model.head.weight": torch.ones(5, 4)}
    dcp.load(target, checkpoint_id=tied, no_dist=True)
    assert torch.equal(target["model.embed.weight"], target["model.head.weight"])
    held = load(tmp_path / "a", parts())
    assert held["model"].head.weight is held["model"].embed.weight


def test_a_head_that_is_tied_on_one_side_only_is_named(tmp_path: Path) -> None:
    save(tmp_path / "tied", parts(steps=1))
    refused(tmp_path / "tied", parts(Net(tied=False)), "tied to head.weight in the checkpoint, apart in the model")
    save(tmp_path / "apart", parts(Net(tied=False), steps=1))
    refused(tmp_path / "apart", parts(), "model.head.weight: tied to embed.weight in the model")


def test_a_tie_between_stages_on_two_ranks_is_stored_once_and_loads_on_one(tmp_path: Path) -> None:
    def stage(rank: int) -> nn.Module:
        whole, part = Net(tied=False), nn.Module()
        with torch.no_grad():
            whole.head.weight.copy_(whole.embed.weight)
        for name in ("embed", "first") if rank == 0 else ("second", "head"):
            part.add_module(name, getattr(whole, name))
        return part

    def held(rank: int) -> dict[str, Any]:
        torch.manual_seed(1)
        model = stage(rank)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.step()
        return {"model": [model], "optimizer": optimizer, "tied_parameters": {"head.weight": "embed.weight"}}

    def saves() -> None:
        with checkpointer(tmp_path, held(forks.world.rank)) as saver:
            saver.save(5)

    forks.values(saves, 2)
    one = load(tmp_path, parts())
    assert one["model"].head.weight is one["model"].embed.weight
    assert torch.equal(one["model"].embed.weight, held(0)["model"][0].embed.weight)
    assert one["optimizer"].state[one["model"].embed.weight]["step"] == 1

    def loads() -> list[float]:
        mine = held(forks.world.rank)
        with torch.no_grad():
            for parameter in mine["model"][0].parameters():
                parameter.zero_()
        with checkpointer(tmp_path, mine) as loader:
            loader.resume()
        return [parameter.abs().sum().item() for parameter in mine["model"][0].parameters()]

    assert all(total > 0 for rank in forks.values(loads, 2) for total in rank)


def test_weights_that_are_said_to_be_tied_and_differ_are_refused(tmp_path: Path) -> None:
    def saves() -> None:
        torch.manual_seed(forks.world.rank)
        part = nn.Module()
        part.add_module("embed" if forks.world.rank == 0 else "head", nn.Linear(2, 2, bias=False))
        with checkpointer(tmp_path, {"model": part, "tied_parameters": {"head.weight": "embed.weight"}}) as saver:
            saver.save(5)

    ended = forks.run(saves, 2)
    assert all(isinstance(end.error, keepstep.ReplicaMismatchError) for end in ended)
    assert "model.embed.weight" in str(ended[0].error)


def test_a_part_may_be_optional_on_both_sides(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path / "with", parts(task=Notes(7)))
    load(tmp_path / "with", parts(optional=["task"]) | {"task": Notes(0)})
    with pytest.raises(keepstep.StateError, match="unknown is no part"):
        keepstep.JobState(optional=["unknown"])
    save(tmp_path / "without", parts())
    held = load(tmp_path / "without", parts(task=Notes(3), optional=["task"]))
    assert held["task"].value == 3
    assert "left as it is, since its part is optional: task.*" in caplog.text
    refused(tmp_path / "without", parts(task=Notes(3)), "task.* (the state of a Notes)")


def test_containers_of_a_task_grow_and_shrink(tmp_path: Path) -> None:
    save(tmp_path, parts(task=Notes({"a": [1, 2, 3], "t": torch.ones(2)})))
    for before in ({}, {"a": [9] * 10, "b": {"c": torch.zeros(5)}}, None):
        held = load(tmp_path, parts(task=Notes(before)))
        assert held["task"].value["a"] == [1, 2, 3]
        assert torch.equal(held["task"].value["t"], torch.ones(2))


class Copies(nn.Linear):
    """Hands out copies of its weights: filling them would change nothing."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_state_dict_post_hook(
            lambda module, held, prefix, meta: held.update({key: value.clone() for key, value in held.items()})
        )


def drop_bias(held: dict[str, Any], prefix: str) -> None:
    del held[prefix + "bias"]


class Drops(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_state_dict_post_hook(lambda module, held, prefix, meta: drop_bias(held, prefix))


@pytest.mark.parametrize(("model", "words"), [(Copies, "weight in the model's state_dict"), (Drops, "parameter bias")])
def test_a_module_that_does_not_hand_out_its_weights_is_refused(tmp_path: Path, model: Any, words: str) -> None:
    with checkpointer(tmp_path, {"model": model()}) as saver, pytest.raises(keepstep.StateError, match=words):
        saver.resume()


def test_a_damaged_older_checkpoint_does_not_stop_the_newest(tmp_path: Path) -> None:
    held = parts(steps=1)
    with checkpointer(tmp_path, held) as saver:
        saver.save(5)
        saver.save(10)
    path = tmp_path / "save-5" / ".metadata"
    good = path.read_bytes()
    for place in range(2, len(good), len(good) // 40):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with checkpointer(tmp_path, parts()) as loader:
            assert loader.resume() == 10


def test_one_parameter_in_two_optimizers_is_refused(tmp_path: Path) -> None:
    model = Net()
    twice = [torch.optim.AdamW(model.parameters()), torch.optim.AdamW(model.parameters())]
    with (
        checkpointer(tmp_path, {"model": model, "optimizer": twice}) as saver,
        pytest.raises(keepstep.StateError, match="two optimizers hold this parameter"),
    ):
        saver.resume()


def test_an_optimizer_that_was_given_names_may_be_given_them_in_another_order(tmp_path: Path) -> None:
    def named(*, turned: bool) -> dict[str, Any]:
        model = Net()
        order = list(model.named_parameters())
        return {"model": model, "optimizer": torch.optim.AdamW(order[::-1] if turned else order)}

    save(tmp_path, named(turned=False))
    held = load(tmp_path, named(turned=True))
    assert held["optimizer"].param_groups[0]["param_names"][-1] == "embed.weight"


def test_state_of_ranks_that_are_gone_is_not_dropped_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def saves() -> None:
        held = {"model": nn.Linear(1, 1), "task": keepstep.PerRank(Notes(forks.world.rank))}
        with checkpointer(tmp_path, held) as saver:
            torch.nn.init.zeros_(held["model"].weight)
            torch.nn.init.zeros_(held["model"].bias)
            saver.save(5)

    forks.values(saves, 3)
    notes = Notes(9)
    load(tmp_path, {"model": nn.Linear(1, 1), "task": keepstep.PerRank(notes)})
    assert notes.value == 0
    assert "task: the state of rank 1, 2 is not taken, this job has 1 ranks" in caplog.text
