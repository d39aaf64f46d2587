import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import keepstep
from keepstep.errors import ConfigError, DamagedCheckpointError
from keepstep.export import weights
from keepstep.export.weights import export_weights, is_exported


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path / "run"), period_steps=5)
    with keepstep.Checkpointer(config, keepstep.JobState(model=nn.Sequential(nn.Linear(2, 3)))) as saver:
        saver.save(5)
        saver.save(10)
    return tmp_path / "run" / "save-5"


def test_the_weights_and_where_they_come_from(checkpoint: Path, tmp_path: Path) -> None:
    export_weights(checkpoint, tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["keepstep.json", "model.safetensors"]
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == {"0.weight", "0.bias"}
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as content:
        assert content.metadata() == {"format": "pt"}
    first = (tmp_path / "out" / "model.safetensors").read_bytes()
    export_weights(checkpoint, tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == first


def test_it_is_known_of_which_checkpoint_an_export_is(checkpoint: Path, tmp_path: Path) -> None:
    assert not is_exported(checkpoint, tmp_path / "out")
    export_weights(checkpoint, tmp_path / "out")
    assert is_exported(checkpoint, tmp_path / "out")
    assert not is_exported(checkpoint.with_name("save-10"), tmp_path / "out")
    export_weights(checkpoint.with_name("save-10"), tmp_path / "out")
    assert is_exported(checkpoint.with_name("save-10"), tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["out", "run"]


def test_a_failed_export_leaves_the_old_one(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_weights(checkpoint, tmp_path / "out")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights, "write_file", full)
    with pytest.raises(OSError, match="No space"):
        export_weights(checkpoint.with_name("save-10"), tmp_path / "out")
    assert is_exported(checkpoint, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["out", "run"]


def test_a_folder_that_is_no_export_is_never_replaced(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="choose another folder"):
        export_weights(checkpoint, tmp_path / "out")
    assert (tmp_path / "out" / "thesis.tex").read_text() == "mine"


def test_an_empty_folder_is_filled(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export_weights(checkpoint, tmp_path / "out")
    assert is_exported(checkpoint, tmp_path / "out")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "save-5").mkdir()
    with pytest.raises(ConfigError, match="not a checkpoint"):
        export_weights(tmp_path / "save-5", tmp_path / "out")


def test_what_a_partial_checkpoint_lacks_comes_from_the_source(checkpoint: Path, tmp_path: Path) -> None:
    source = {"0.weight": torch.zeros(3, 2), "base.weight": torch.ones(2)}
    save_file(source, tmp_path / "base.safetensors")
    export_weights(checkpoint, tmp_path / "out", str(tmp_path / "base.safetensors"))
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert set(found) == {"0.weight", "0.bias", "base.weight"}
    assert found["0.weight"].any()


def test_other_files_in_an_export_stay(checkpoint: Path, tmp_path: Path) -> None:
    export_weights(checkpoint, tmp_path / "out")
    (tmp_path / "out" / "tokenizer.json").write_text("{}")
    export_weights(checkpoint.with_name("save-10"), tmp_path / "out")
    assert is_exported(checkpoint.with_name("save-10"), tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["keepstep.json", "model.safetensors", "tokenizer.json"]


def test_a_link_to_a_folder_is_followed(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "big")
    for name in ("save-5", "save-10"):
        export_weights(checkpoint.with_name(name), tmp_path / "out")
        assert is_exported(checkpoint.with_name(name), tmp_path / "out")
    assert (tmp_path / "big" / "model.safetensors").is_file()
    assert (tmp_path / "out").is_symlink()


def test_a_damaged_checkpoint_is_not_exported(checkpoint: Path, tmp_path: Path) -> None:
    shard = checkpoint / "__0_0.distcp"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DamagedCheckpointError, match="damaged and not exported"):
        export_weights(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()
