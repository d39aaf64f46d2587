"""What plain DCP wrote comes back as plain DCP loads it, and what does not fit is named."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard

import keepstep
from tests.rig import forks

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def nested() -> dict[str, Any]:
    torch.manual_seed(3)
    base = torch.randn(400, 500)
    return {
        "model": {"large": torch.randn(700, 300), "small": torch.arange(5), "scalar": torch.tensor(2.5)},
        "views": [base[100:300], base.t(), base[::2], torch.randn(40, 50, 100).bfloat16()],
        "step": 7,
        "names": {"list": ["a", "b"], "none": None},
        "empty": torch.empty(0, 3),
        "conj": torch.randn(200, 300, dtype=torch.complex64).conj(),
    }


def zeroed(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return torch.zeros_like(state)
    if isinstance(state, dict):
        return {key: zeroed(value) for key, value in state.items()}
    return [zeroed(value) for value in state] if isinstance(state, list) else type(state)()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return len(a) == len(b) and all(map(same, a, b)) if isinstance(a, list) else bool(a == b)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    dcp.save(nested(), checkpoint_id=tmp_path / "plain", no_dist=True)
    return tmp_path / "plain"


def test_everything_comes_back_into_the_memory_that_was_given(folder: Path) -> None:
    state = zeroed(nested())
    kept = state["model"]["large"]
    keepstep.load_dcp(state, folder)
    assert same(state, nested())
    assert state["model"]["large"] is kept


def test_only_what_is_asked_for_is_loaded_and_dtypes_are_converted(folder: Path) -> None:
    state = {"model": {"large": torch.zeros(700, 300, dtype=torch.float64)}, "step": 0}
    keepstep.load_dcp(state, folder)
    assert torch.equal(state["model"]["large"], nested()["model"]["large"].double())
    assert state["step"] == 7


def test_a_checkpoint_of_keepstep_is_read_too(tmp_path: Path) -> None:
    model = nn.Linear(300, 200)
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps=1)
    with keepstep.Checkpointer(config, keepstep.JobState(model=model), handle_signals=False) as saver:
        saver.save(1)
    state = {"model": zeroed(dict(model.state_dict())), "step": torch.tensor(0)}
    keepstep.load_dcp(state, tmp_path / "save-1")
    assert same(state["model"], dict(model.state_dict()))
    assert state["step"] == 1


def sharded(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(301, 203), nn.Linear(203, 5))
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


@pytest.mark.parametrize(("saved", "loaded"), [(2, 3), (3, 2), (2, 2)])
def test_shards_of_one_layout_fill_another(tmp_path: Path, saved: int, loaded: int) -> None:
    def saves() -> None:
        dcp.save({"model": sharded(1).state_dict()}, checkpoint_id=tmp_path / "plain")

    def loads() -> bool:
        model, expected = sharded(2), sharded(1)
        keepstep.load_dcp({"model": model.state_dict()}, tmp_path / "plain")
        return all(map(torch.equal, *([p.to_local() for p in m.parameters()] for m in (model, expected))))

    forks.values(saves, saved)
    assert forks.values(loads, loaded) == [True] * loaded


def test_what_does_not_fit_is_named_and_nothing_is_changed(folder: Path) -> None:
    state = {"model": {"large": torch.zeros(7, 3), "other": torch.zeros(1)}, "step": torch.zeros(1), "names": 3}
    with pytest.raises(keepstep.StateMismatchError) as caught:
        keepstep.load_dcp(state, folder)
    for part in (
        "model.large has shape (700, 300) in it, (7, 3) here",
        "model.other is not in it",
        "step is a tensor in one",
        "names is not in it",
    ):
        assert part in str(caught.value)
    with pytest.raises(keepstep.CheckpointNotFoundError, match=r"no \.metadata"):
        keepstep.load_dcp({}, folder.parent)


def test_a_file_that_is_cut_off_is_told(folder: Path) -> None:
    (shard,) = folder.glob("*.distcp")
    shard.write_bytes(shard.read_bytes()[:-300_000])
    with pytest.raises(keepstep.DamagedCheckpointError):
        keepstep.load_dcp(zeroed(nested()), folder)


def test_a_tensor_some_of_whose_shards_are_missing_is_not_taken_for_whole(tmp_path: Path) -> None:
    def saves() -> None:
        dcp.save({"model": sharded(1).state_dict()}, checkpoint_id=tmp_path / "plain")

    forks.values(saves, 2)
    metadata = pickle.loads((tmp_path / "plain" / ".metadata").read_bytes())
    gone = next(index for index in metadata.storage_data if index.fqn == "model.0.weight")
    del metadata.storage_data[gone]
    (tmp_path / "plain" / ".metadata").write_bytes(pickle.dumps(metadata))
    state = {"model": {"0.weight": torch.zeros(203, 301), "1.bias": torch.zeros(5)}}
    with pytest.raises(keepstep.DamagedCheckpointError, match=r"model\.0\.weight has only \d+ of its 61103 elements"):
        keepstep.load_dcp(state, tmp_path / "plain")
    assert not state["model"]["1.bias"].any()


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def test_no_code_of_a_folder_runs(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"bad": Evil(tmp_path / "ran")}, checkpoint_id=tmp_path / "plain", no_dist=True)
    (tmp_path / "ran").unlink(missing_ok=True)
    with pytest.raises(keepstep.UnsupportedStateError, match="bad is no plain value"):
        keepstep.load_dcp({"bad": 0}, tmp_path / "plain")
    (tmp_path / "plain" / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    with pytest.raises(keepstep.UnsupportedStateError):
        keepstep.load_dcp({"bad": 0}, tmp_path / "plain")
    assert not (tmp_path / "ran").exists()
