import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import keepstep
from keepstep.errors import ConfigError
from keepstep.export import weights
from keepstep.export.weights import export, is_exported


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path / "run"), period_steps=5)
    with keepstep.Checkpointer(config, keepstep.JobState(model=nn.Sequential(nn.Linear(2, 3)))) as saver:
        saver.save(5)
        saver.save(10)
    return tmp_path / "run" / "save-5"


def test_the_weights_and_where_they_come_from(checkpoint: Path, tmp_path: Path) -> None:
    export(checkpoint, tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["keepstep.json", "model.safetensors"]
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == {"0.weight", "0.bias"}
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as content:
        assert content.metadata()["keepstep.step"] == "5"
        assert content.metadata()["format"] == "pt"


def test_it_is_known_of_which_checkpoint_an_export_is(checkpoint: Path, tmp_path: Path) -> None:
    assert not is_exported(checkpoint, tmp_path / "out")
    export(checkpoint, tmp_path / "out")
    assert is_exported(checkpoint, tmp_path / "out")
    assert not is_exported(checkpoint.with_name("save-10"), tmp_path / "out")
    export(checkpoint.with_name("save-10"), tmp_path / "out")
    assert is_exported(checkpoint.with_name("save-10"), tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["out", "run"]


def test_a_failed_export_leaves_the_old_one(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(checkpoint, tmp_path / "out")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weights, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        export(checkpoint.with_name("save-10"), tmp_path / "out")
    assert is_exported(checkpoint, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["out", "run"]


def test_a_folder_that_is_no_export_is_never_replaced(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="choose another folder"):
        export(checkpoint, tmp_path / "out")
    assert (tmp_path / "out" / "thesis.tex").read_text() == "mine"


def test_an_empty_folder_is_filled(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export(checkpoint, tmp_path / "out")
    assert is_exported(checkpoint, tmp_path / "out")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "save-5").mkdir()
    with pytest.raises(ConfigError, match="not a checkpoint"):
        export(tmp_path / "save-5", tmp_path / "out")


def test_what_a_partial_checkpoint_lacks_comes_from_the_source(checkpoint: Path, tmp_path: Path) -> None:
    source = {"0.weight": torch.zeros(3, 2), "base.weight": torch.ones(2)}
    save_file(source, tmp_path / "base.safetensors")
    export(checkpoint, tmp_path / "out", str(tmp_path / "base.safetensors"))
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert set(found) == {"0.weight", "0.bias", "base.weight"}
    assert found["0.weight"].any()
