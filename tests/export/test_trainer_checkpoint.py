"""Weights out of a Trainer's checkpoint: a verified copy, without optimizer state."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from keepstep.errors import ConfigError, DamagedCheckpointError
from keepstep.export.adapter import check_adapter, export_adapter
from keepstep.export.torch_file import export_torch
from keepstep.export.weights import export_weights
from tests.rig.trainer_folders import adopt, commit, make_trainer_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    made = make_trainer_checkpoint(tmp_path / "run", 5, tokenizer=True)
    adopt(tmp_path / "run")
    return made


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    made = make_trainer_checkpoint(tmp_path / "lora", 5, adapter=True, tokenizer=True)
    adopt(tmp_path / "lora")
    return made


def flip(file: Path, at: int = -1) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def test_a_copy_of_the_weights_with_what_lies_beside(checkpoint: Path, tmp_path: Path) -> None:
    done = export_weights(checkpoint, tmp_path / "out")
    assert (done.step, done.tensors) == (5, 2)
    assert sorted(os.listdir(tmp_path / "out")) == [
        *("config.json", "keepstep.json", "model.safetensors", "tokenizer.json")
    ]
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    note = json.loads((tmp_path / "out" / "keepstep.json").read_text())
    assert note["checkpoint"] == json.loads((checkpoint / "manifest.json").read_text())["digest"]


def test_another_dtype_in_several_files(checkpoint: Path, tmp_path: Path) -> None:
    done = export_weights(checkpoint, tmp_path / "out", dtype="bfloat16", max_shard_size=20)
    assert "model.safetensors.index.json" in done.files
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    weights = load_file(tmp_path / "out" / "model-00002-of-00002.safetensors")
    assert weights["layer.weight"].dtype == torch.bfloat16


def test_one_file_of_torch(checkpoint: Path, tmp_path: Path) -> None:
    export_torch(checkpoint, tmp_path / "out.pt")
    state = torch.load(tmp_path / "out.pt", weights_only=True)
    assert torch.equal(state["layer.weight"], load_file(checkpoint / "model.safetensors")["layer.weight"])


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_changed_byte_ends_it(checkpoint: Path, tmp_path: Path, name: str) -> None:
    flip(checkpoint / name)
    with pytest.raises(DamagedCheckpointError, match=f"{name}: its content has changed"):
        export_weights(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_optimizer_is_not_read(checkpoint: Path, tmp_path: Path) -> None:
    flip(checkpoint / "optimizer.pt")
    export_weights(checkpoint, tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"weights": "task.ema"}, "leave --weights and --ema out"),
        ({"named": "ema"}, "leave --weights and --ema out"),
        ({"partial": True}, "--partial is for"),
        ({"source": "base"}, "--source is for"),
        ({"source": "base", "merge": True}, "holds no adapter"),
    ],
)
def test_what_makes_no_sense_is_refused(
    checkpoint: Path, tmp_path: Path, options: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        export_weights(checkpoint, tmp_path / "out", **options)  # type: ignore[arg-type]


def test_one_that_nobody_adopted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keepstep adopt"):
        export_weights(make_trainer_checkpoint(tmp_path, 5), tmp_path / "out")


def test_weights_of_another_form_are_named(tmp_path: Path) -> None:
    made = make_trainer_checkpoint(tmp_path / "run", 5)
    torch.save({}, made / "pytorch_model.bin")
    (made / "model.safetensors").unlink()
    adopt(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"of weights there is: pytorch_model\.bin"):
        export_weights(made, tmp_path / "out")


def test_an_adapter_with_its_tokenizer(adapter: Path, tmp_path: Path) -> None:
    export_adapter(adapter, tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == [
        *("adapter_config.json", "adapter_model.safetensors", "keepstep.json", "tokenizer.json")
    ]
    same = "adapter_model.safetensors"
    assert (tmp_path / "out" / same).read_bytes() == (adapter / same).read_bytes()
    note = json.loads((tmp_path / "out" / "keepstep.json").read_text())
    assert (note["adapter"], note["base_model"]) == ("default", "some/base")
    with pytest.raises(ConfigError, match="--to peft copies it"):
        export_weights(adapter, tmp_path / "other")
    with pytest.raises(ConfigError, match="no adapter 'second'; there are: default"):
        export_adapter(adapter, tmp_path / "other", adapter="second")


def test_the_base_of_a_trainers_adapter_is_not_told_by_its_files(tmp_path: Path) -> None:
    made = make_trainer_checkpoint(tmp_path / "lora", 5, adapter=True, tokenizer=True)
    commit(made, {"step": 5, "base_model": "some/base", "base_weights": "of the model in memory"})
    export_adapter(made, tmp_path / "out")
    save_file({"layer.weight": torch.zeros(4, 8)}, tmp_path / "model.safetensors")
    check_adapter(tmp_path / "out", base=tmp_path)


def test_a_changed_adapter_is_not_exported(adapter: Path, tmp_path: Path) -> None:
    flip(adapter / "adapter_config.json", 3)
    with pytest.raises(DamagedCheckpointError, match=r"adapter_config\.json"):
        export_adapter(adapter, tmp_path / "out")


def test_an_adapter_in_its_base(adapter: Path, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    base = {"layer.weight": torch.zeros(4, 8), "layer.bias": torch.ones(4)}
    save_file(base, tmp_path / "base" / "model.safetensors")
    export_weights(adapter, tmp_path / "out", tmp_path / "base", merge=True)
    merged = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(merged["layer.weight"], torch.full((4, 8), 2.0 * 5 * 2))
    assert torch.equal(merged["layer.bias"], base["layer.bias"])
