"""Weights of others become a checkpoint like any other, and come out of it as they went in."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed import checkpoint as dcp

import keepstep
from keepstep.dcp.digests import bytes_of
from keepstep.errors import ConfigError, StateMismatchError, UnsupportedStateError
from keepstep.export.loading import load_source
from keepstep.export.source import source_digest
from keepstep.export.torch_file import export_torch
from keepstep.export.weights import export_weights
from keepstep.job.convert import convert
from keepstep.ops.diff import diff
from keepstep.ops.verify import verify
from keepstep.storage.content import FileDigests

DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.uint8, torch.bool]


def weights() -> dict[str, torch.Tensor]:
    drawn = {str(dtype).removeprefix("torch."): (torch.randn(5, 7) * 3).to(dtype) for dtype in DTYPES}
    special = torch.tensor([float("nan"), float("inf"), -0.0])
    ends = {"deep.er.zero_dim": torch.tensor(3.5), "deep.er": torch.empty(0, 4), "model.special": special}
    return {**drawn, **ends, "large": torch.randn(300, 200)}


def save_torch(held: dict[str, torch.Tensor], folder: Path) -> Path:
    torch.save({"state_dict": held, "epoch": 3}, folder / "w.pt")
    return folder / "w.pt"


def save_safetensors(held: dict[str, torch.Tensor], folder: Path) -> Path:
    save_file(held, folder / "w.safetensors")
    return folder / "w.safetensors"


def save_dcp(held: dict[str, torch.Tensor], folder: Path) -> Path:
    dcp.save({"model": held}, checkpoint_id=folder / "w", no_dist=True)
    return folder / "w"


def is_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(
        (a.dtype, a.shape) == (other[name].dtype, other[name].shape) and bytes_of(a) == bytes_of(other[name])
        for name, a in one.items()
    )


@pytest.mark.parametrize("save", [save_torch, save_safetensors, save_dcp])
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_goes_in_comes_out_bit_for_bit(tmp_path: Path, save: object) -> None:
    held = weights()
    assert callable(save)
    source: Path = save(held, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = convert(source, tmp_path / "run", step=40)
    checkpoint = tmp_path / "run" / "save-40"
    assert (done.checkpoint, done.step, done.tensors) == (str(checkpoint), 40, len(held))
    assert done.size == sum(value.numel() * value.itemsize for value in held.values())
    export_torch(checkpoint, tmp_path / "out.pt")
    assert is_same(torch.load(tmp_path / "out.pt", weights_only=True), held)
    export_weights(checkpoint, tmp_path / "out")
    assert is_same(load_file(tmp_path / "out" / "model.safetensors"), held)
    plain = {f"model.{name}": torch.empty_like(value) for name, value in held.items()}
    dcp.load(plain, checkpoint_id=checkpoint, no_dist=True)
    assert is_same({name.removeprefix("model."): value for name, value in plain.items()}, held)
    assert {path: path.read_bytes() for path in before} == before


def test_verify_and_diff_agree_and_the_record_names_the_source(tmp_path: Path) -> None:
    source = save_safetensors(weights(), tmp_path)
    done = convert(source, tmp_path / "run" / "save-7")
    assert done.step == 7
    (found,) = verify(tmp_path / "run" / "save-7")
    assert found.condition == "complete"
    assert diff(str(source), done.checkpoint).same_state
    record = json.loads((tmp_path / "run" / "save-7" / "run.json").read_text())
    with FileDigests(None) as files:
        assert record["base_weights"] == source_digest(source, files)
    assert (record["base_model"], record["run"], record["step"]) == ("w.safetensors", "run", 7)
    assert str(tmp_path) not in json.dumps(record)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    torch.save(model.state_dict(), tmp_path / "w.pt")
    assert convert(tmp_path / "w.pt", tmp_path / "run").tensors == 1
    other = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    other[1].weight = other[0].weight
    resumed(other, tmp_path)
    assert torch.equal(other[0].weight, model[0].weight)
    save_file({"0.weight": model[0].weight.detach()}, tmp_path / "w.safetensors", {"1.weight": "0.weight"})
    assert convert(tmp_path / "w.safetensors", tmp_path / "run", step=1).tensors == 1
    assert diff(str(tmp_path / "w.safetensors"), str(tmp_path / "run" / "save-1")).same_state


def resumed(model: nn.Module, folder: Path, **parts: object) -> int:
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=5)
    state = keepstep.JobState(model=model, **parts)  # type: ignore[arg-type]
    with keepstep.Checkpointer(config, state, "run", handle_signals=False) as checkpointer:
        return checkpointer.resume()


def test_a_job_goes_on_from_it_if_it_has_only_the_model_or_the_rest_is_optional(tmp_path: Path) -> None:
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    convert(save_safetensors(model.state_dict(), tmp_path), tmp_path / "run", step=30)
    assert resumed(other, tmp_path) == 30
    assert torch.equal(other.weight, model.weight)
    third = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(third.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(StateMismatchError, match=r"Registered, but not in the checkpoint: optimizer\."):
        resumed(third, tmp_path, optimizer=optimizer)
    assert resumed(third, tmp_path, optimizer=optimizer, optional=("optimizer",)) == 30
    assert torch.equal(third.weight, model.weight)


def test_nothing_that_is_there_is_replaced_or_thrown_away(tmp_path: Path) -> None:
    source = save_torch({"a": torch.ones(2)}, tmp_path)
    for step in (0, 5, 3):
        convert(source, tmp_path / "run", step=step)
    assert sorted(name for name in os.listdir(tmp_path / "run") if name.startswith("save-")) == [
        "save-0",
        "save-3",
        "save-5",
    ]
    before = (tmp_path / "run" / "save-0" / "run.json").read_bytes()
    with pytest.raises(ConfigError, match="save-0 is there already"):
        convert(source, tmp_path / "run")
    assert (tmp_path / "run" / "save-0" / "run.json").read_bytes() == before
    with pytest.raises(ConfigError, match="is the name of step 9, and --step says 8"):
        convert(source, tmp_path / "run" / "save-9", step=8)
    with pytest.raises(ConfigError, match="must be 0 or more"):
        convert(source, tmp_path / "run", step=-1)


def test_a_source_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    torch.save({"a": 1}, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match="no tensors: a"):
        convert(tmp_path / "w.pt", tmp_path / "run")
    assert os.listdir(tmp_path) == ["w.pt"]
    torch.save({"a": torch.eye(3).to_sparse()}, tmp_path / "w.pt")
    with pytest.raises(UnsupportedStateError, match=r"model\.a is sparse or nested"):
        convert(tmp_path / "w.pt", tmp_path / "run")
    assert os.listdir(tmp_path) == ["w.pt"]


def test_views_are_written_as_they_are_seen(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    held = {"t": base.t(), "cut": base[1:, ::2], "wide": torch.ones(3, 1).expand(3, 5)}
    conjugated = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64).conj()
    torch.save({**held, "conjugated": conjugated, "parameter": nn.Parameter(base)}, tmp_path / "w.pt")
    convert(tmp_path / "w.pt", tmp_path / "run")
    export_torch(tmp_path / "run" / "save-0", tmp_path / "out.pt")
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    for name, value in {**held, "conjugated": conjugated, "parameter": base}.items():
        assert torch.equal(found[name], value), name


def test_a_job_begins_from_it(tmp_path: Path) -> None:
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    done = convert(save_torch(model.state_dict(), tmp_path), tmp_path / "run")
    load_source(done.checkpoint, [other])
    assert torch.equal(other.weight, model.weight)
    assert torch.equal(other.bias, model.bias)
