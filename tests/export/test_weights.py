import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file
from torch import nn

import keepstep
from keepstep.errors import ConfigError, DamagedCheckpointError, ExportError, StateMismatchError, UnsupportedStateError
from keepstep.export import weights
from keepstep.export.folder import read_export
from keepstep.export.loading import load_source
from keepstep.export.weights import export_weights, is_exported
from keepstep.ops.diff import diff
from keepstep.plan.difference import Kind
from keepstep.plan.weight_files import header
from keepstep.storage.index import from_bytes


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


def test_arguments_that_cannot_work_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nobody writes into a checkpoint"):
        export_weights(checkpoint, checkpoint / "out")
    for more in ({"dtype": "int8"}, {"max_shard_size": 0}):
        with pytest.raises(ConfigError, match="dtype must be one of bfloat16, float16, float32, and max_shard_size"):
            export_weights(checkpoint, tmp_path / "out", **more)


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


def test_of_tied_weights_the_first_name_of_the_model_is_written(tied: tuple[Path, nn.Module], tmp_path: Path) -> None:
    done = export_weights(tied[0], tmp_path / "out")
    assert done.tied == {"a_head.weight": "embed.weight"}
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as content:
        assert content.metadata() == {"format": "pt", "a_head.weight": "embed.weight"}
        assert "a_head.weight" not in content.keys()  # noqa: SIM118 - it is no mapping
    other = type(tied[1])()
    load_model(other, tmp_path / "out" / "model.safetensors")
    assert torch.equal(other.a_head.weight, tied[1].embed.weight)
    export_weights(tied[0], tmp_path / "out", max_shard_size=200)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["a_head.weight"] == "embed.weight"


@pytest.mark.parametrize("most", [10**9, 200])
def test_an_export_is_a_source_of_the_next_run_and_equal_to_its_checkpoint(
    tied: tuple[Path, nn.Module], tmp_path: Path, most: int
) -> None:
    checkpoint, model = tied
    export_weights(checkpoint, tmp_path / "out", max_shard_size=most)
    other = type(model)()
    load_source(tmp_path / "out", [other])
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())
    assert diff(str(checkpoint), str(tmp_path / "out")).same_state


def test_other_sets_of_weights(tied: tuple[Path, nn.Module], tmp_path: Path) -> None:
    checkpoint, model = tied
    export_weights(checkpoint, tmp_path / "out", weights="task.ema")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == model.state_dict().keys()
    assert not is_exported(checkpoint, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"no tensors under 'task\.em'; there are model, task\.ema"):
        export_weights(checkpoint, tmp_path / "other", weights="task.em")


def test_averaged_weights_are_found_by_their_name(tied: tuple[Path, nn.Module], tmp_path: Path) -> None:
    checkpoint, model = tied
    done = export_weights(checkpoint, tmp_path / "out", named="ema")
    held = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(held["embed.weight"], model.embed.weight + 1)
    assert done.tensors == len(held)
    with pytest.raises(ConfigError, match=r"'average' names no sets of weights; there are model, task\.ema"):
        export_weights(checkpoint, tmp_path / "other", named="average")


def test_the_record_says_where_the_weights_come_from(tmp_path: Path) -> None:
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path / "run"), period_steps=5)
    facts = keepstep.RunFacts(run_name="exp", base_model="org/base", dataset_sha256="d" * 64, config={"lr": 1})
    state = keepstep.JobState(model=nn.Linear(2, 2))
    with keepstep.Checkpointer(config, state, "exp", handle_signals=False, facts=facts) as saver:
        saver.save(5)
    checkpoint = tmp_path / "run" / "exp" / "save-5"
    done = export_weights(checkpoint, tmp_path / "out")
    record, run = read_export(tmp_path / "out"), json.loads((checkpoint / "run.json").read_text())
    for name in ("run", "base_model", "dataset_sha256", "config_sha256", "git_commit", "step"):
        assert record[name] == run[name]
    assert (record["base_model"], record["run"], done.run) == ("org/base", "exp", "exp")
    assert record["checkpoint"] == json.loads((checkpoint / "manifest.json").read_text())["digest"]
    assert record["files"]["model.safetensors"]["digest"] == done.files["model.safetensors"].digest


def test_damage_counts_where_it_is_exported(tied: tuple[Path, nn.Module], tmp_path: Path) -> None:
    checkpoint, _ = tied
    shard = checkpoint / "__0_0.distcp"
    whole = shard.read_bytes()
    items = from_bytes((checkpoint / "__0.index").read_bytes())[0].items
    data = bytearray(whole)
    data[next(one for one in items if one.key == "model.layers.1.weight").data] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DamagedCheckpointError, match="is damaged and not exported: __0_0"):
        export_weights(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    shard.write_bytes(whole[:-1])
    with pytest.raises(DamagedCheckpointError, match="bytes, not"):
        export_weights(checkpoint, tmp_path / "out")
    shard.write_bytes(whole)
    (checkpoint / "run.json").write_text("{}".ljust(len((checkpoint / "run.json").read_text())))
    with pytest.raises(DamagedCheckpointError, match=r"run\.json: its content has changed"):
        export_weights(checkpoint, tmp_path / "out")


def test_what_is_not_exported_is_not_read(tmp_path: Path) -> None:
    model = nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(300)).sum().backward()
    optimizer.step()
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path / "run"), period_steps=5)
    state = keepstep.JobState(model=model, optimizer=optimizer)
    with keepstep.Checkpointer(config, state, handle_signals=False) as saver:
        saver.save(5)
    checkpoint = tmp_path / "run" / "save-5"
    items = from_bytes((checkpoint / "__0.index").read_bytes())[0].items
    moment = next(one for one in items if one.key == "optimizer.state.weight.exp_avg")
    with (checkpoint / "__0_0.distcp").open("r+b") as file:
        file.seek(moment.data + moment.length // 2)
        file.write(b"damage")
    export_weights(checkpoint, tmp_path / "out")
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["weight"], model.weight)


def test_trainable_parameters_alone_are_no_model(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path / "run"), period_steps=5)
    state = keepstep.JobState(model=model, only_trainable_parameters=True)
    with keepstep.Checkpointer(config, state, handle_signals=False) as saver:
        saver.save(5)
    checkpoint = tmp_path / "run" / "save-5"
    with pytest.raises(ConfigError, match=r"lacks 0\.\w+, 0\.\w+; name the base weights with --source, or take"):
        export_weights(checkpoint, tmp_path / "out")
    export_weights(checkpoint, tmp_path / "part", partial=True)
    assert set(load_file(tmp_path / "part" / "model.safetensors")) == {"1.weight", "1.bias"}
    save_file({**model.state_dict(), "1.weight": torch.zeros(2, 2)}, tmp_path / "base.safetensors")
    export_weights(checkpoint, tmp_path / "out", tmp_path / "base.safetensors")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
    save_file({**model.state_dict(), "0.bias": torch.ones(2)}, tmp_path / "base.safetensors")
    with pytest.raises(StateMismatchError, match=r"other weights than those that the run was begun with: 0\.bias;"):
        export_weights(checkpoint, tmp_path / "other", tmp_path / "base.safetensors", dtype="float16")
    assert not (tmp_path / "other").exists()


def test_a_disk_without_room_is_told_before(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "free_bytes", lambda folder: 10)
    with pytest.raises(ExportError, match="it needs 36 bytes, and 10 are free"):
        export_weights(checkpoint, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["run"]


def test_a_source_of_all_kinds(checkpoint: Path, tmp_path: Path) -> None:
    others = {
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 3, dtype=torch.bfloat16),
        "eight": torch.arange(12.0).reshape(3, 4).to(torch.float8_e4m3fn),
        "half": torch.arange(6.0).half(),
    }
    save_file(others, tmp_path / "base.safetensors")
    export_weights(checkpoint, tmp_path / "out", tmp_path / "base.safetensors", dtype="float32")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == {"0.weight", "0.bias", *others}
    assert torch.equal(found["half"], others["half"].float())
    assert torch.equal(found["eight"].view(torch.uint8), others["eight"].view(torch.uint8))
    assert (found["scalar"].item(), found["empty"].shape, found["empty"].dtype) == (3, (0, 3), torch.float32)
    (tmp_path / "base.safetensors").write_bytes((tmp_path / "base.safetensors").read_bytes()[:-4])
    with pytest.raises(ConfigError, match=r"base\.safetensors is not readable"):
        export_weights(checkpoint, tmp_path / "cut", tmp_path / "base.safetensors")
    content = header([Kind("x", "uint8", (2,), 2)], {}).replace(b'"U8"', b'"F4"').replace(b"[2]", b"[4]") + bytes(2)
    (tmp_path / "base.safetensors").write_bytes(content)
    with pytest.raises(UnsupportedStateError, match="x is of F4, which readers"):
        export_weights(checkpoint, tmp_path / "cut", tmp_path / "base.safetensors")
