"""One file of torch.save out of a checkpoint."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import keepstep
from keepstep.errors import ConfigError, DamagedCheckpointError, ExportError, StateMismatchError, UnsupportedStateError
from keepstep.export import torch_file
from keepstep.export.stream import WrittenFile, digest_of
from keepstep.export.torch_file import export_torch, read_note


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("low", torch.randn(9).to(torch.float8_e4m3fn))


def saved(folder: Path, model: nn.Module, **how: Any) -> Path:
    config = keepstep.CheckpointingConfig(save_dir=str(folder / "run"), period_steps=5)
    with keepstep.Checkpointer(config, keepstep.JobState(model=model, **how), handle_signals=False) as saver:
        saver.save(5)
    return folder / "run" / "save-5"


@pytest.fixture
def model() -> Tied:
    return Tied()


@pytest.fixture
def checkpoint(tmp_path: Path, model: Tied) -> Path:
    return saved(tmp_path, model)


def load(path: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    return state


def test_a_flat_state_dict_that_the_model_takes(checkpoint: Path, tmp_path: Path, model: Tied) -> None:
    done = export_torch(checkpoint, tmp_path / "out.pt")
    state = load(tmp_path / "out.pt")
    assert (done.step, done.tensors, done.tied) == (5, 4, {"head.weight": "embed.weight"})
    assert done.files == {"out.pt": digest_of(tmp_path / "out.pt")}
    expected = model.state_dict()
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        assert state[name].dtype == value.dtype
        assert torch.equal(state[name].float(), value.float())
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()
    Tied().load_state_dict(state)
    assert sorted(os.listdir(tmp_path)) == ["out.pt", "run"]


def test_floats_are_cast_as_they_are_for_safetensors(
    tmp_path: Path, model: Tied, caplog: pytest.LogCaptureFixture
) -> None:
    with torch.no_grad():
        model.embed.weight[0, 0] = 1e9
    export_torch(saved(tmp_path, model), tmp_path / "out.pt", dtype="float16")
    state = load(tmp_path / "out.pt")
    assert [state[name].dtype for name in ("embed.weight", "count", "low")] == [
        torch.float16,
        torch.int64,
        torch.float8_e4m3fn,
    ]
    assert "1 numbers are too large for float16 and became infinite, 1 of them in embed.weight" in caplog.text


def test_only_a_file_of_its_own_is_replaced(checkpoint: Path, tmp_path: Path) -> None:
    for place, content in (("mine.pt", b"mine"), ("empty.pt", b"")):
        (tmp_path / place).write_bytes(content)
        with pytest.raises(ConfigError, match="no export of keepstep lies there"):
            export_torch(checkpoint, tmp_path / place)
        assert (tmp_path / place).read_bytes() == content
    torch.save({"a": torch.ones(1)}, tmp_path / "other.pt")
    (tmp_path / "folder.pt").mkdir()
    export_torch(checkpoint, tmp_path / "out.pt")
    (tmp_path / "link.pt").symlink_to("out.pt")
    for place in ("other.pt", "folder.pt", "link.pt"):
        with pytest.raises(ConfigError, match="choose another name"):
            export_torch(checkpoint, tmp_path / place)
    export_torch(checkpoint, tmp_path / "out.pt", dtype="bfloat16")
    assert load(tmp_path / "out.pt")["embed.weight"].dtype == torch.bfloat16
    note = read_note(tmp_path / "out.pt")
    assert (note["step"], note["dtype"], note["tied"]) == (5, "bfloat16", {"head.weight": "embed.weight"})
    with pytest.raises(ConfigError, match="nobody writes into a checkpoint"):
        export_torch(checkpoint, checkpoint / "out.pt")


def full(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_damage_and_failures_leave_what_was_there(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_torch(checkpoint, tmp_path / "out.pt")
    before = (tmp_path / "out.pt").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(torch_file, "digest_of", lambda path: WrittenFile(0, ""))
        with pytest.raises(ExportError, match="what is read back"):
            export_torch(checkpoint, tmp_path / "out.pt", dtype="float16")
    with monkeypatch.context() as patch:
        patch.setattr(torch_file, "free_bytes", lambda folder: 3)
        with pytest.raises(ExportError, match="and 3 are free"):
            export_torch(checkpoint, tmp_path / "out.pt")
    with monkeypatch.context() as patch:
        patch.setattr(torch_file._Digested, "write", full)
        with pytest.raises(ExportError, match="failed: "):
            export_torch(checkpoint, tmp_path / "out.pt")
    shard = checkpoint / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    for at in range(len(data)):
        data[at] ^= 255
    shard.write_bytes(data)
    with pytest.raises(DamagedCheckpointError, match="is damaged and not exported"):
        export_torch(checkpoint, tmp_path / "out.pt")
    assert (tmp_path / "out.pt").read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["out.pt", "run"]


def test_another_dtype_than_safetensors_has_is_named(tmp_path: Path) -> None:
    model = nn.Module()
    model.register_buffer("wide", torch.zeros(2, dtype=torch.complex128))
    with pytest.raises(UnsupportedStateError, match="wide is of complex128"):
        export_torch(saved(tmp_path, model), tmp_path / "out.pt")


def test_a_trainable_only_checkpoint_is_completed_from_its_base(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).requires_grad_(False)
    save_file(model.state_dict(), tmp_path / "base.safetensors")
    model[1].requires_grad_(True)
    with torch.no_grad():
        model[1].weight.add_(1)
    checkpoint = saved(tmp_path, model, only_trainable_parameters=True)
    with pytest.raises(ConfigError, match="trainable parameters only and lacks"):
        export_torch(checkpoint, tmp_path / "out.pt")
    export_torch(checkpoint, tmp_path / "out.pt", tmp_path / "base.safetensors")
    state = load(tmp_path / "out.pt")
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    with torch.no_grad():
        model[0].weight.add_(1)
    save_file(model.state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(StateMismatchError, match="has other weights than those that the run was begun with"):
        export_torch(checkpoint, tmp_path / "out.pt", tmp_path / "other.safetensors")


def test_a_mapper_gives_other_names(checkpoint: Path, tmp_path: Path, model: Tied) -> None:
    steps = "[{kind: select, names: [embed.weight]}, {kind: rename, names: {embed.weight: wte}}]"
    (tmp_path / "mapper.yaml").write_text(f"steps: {steps}")
    mapper = keepstep.Mapper.from_yaml(tmp_path / "mapper.yaml")
    export_torch(checkpoint, tmp_path / "out.pt", mapper=mapper)
    state = load(tmp_path / "out.pt")
    assert list(state) == ["wte"]
    assert torch.equal(state["wte"], model.embed.weight)
