import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from keepstep.errors import ConfigError, StateMismatchError
from keepstep.export.loading import load_source
from keepstep.export.source import find_files


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def test_a_file_a_folder_and_an_index_are_found(tmp_path: Path) -> None:
    weights = model().state_dict()
    single = tmp_path / "single"
    single.mkdir()
    save_file(weights, single / "model.safetensors")
    split = tmp_path / "split"
    split.mkdir()
    names = sorted(weights)
    places = {name: f"model-{i % 2 + 1}-of-2.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: weights[name] for name in names if places[name] == file}, split / file)
    (split / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    for source in (single / "model.safetensors", single, split):
        other = model()
        load_source(source, [other])
        assert all(torch.equal(value, weights[name]) for name, value in other.state_dict().items())
    (split / "model-1-of-2.safetensors").unlink()
    with pytest.raises(ConfigError, match="named in the index and missing"):
        find_files(split)


def test_what_is_no_model_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no model state there"):
        find_files(tmp_path / "nowhere")
    (tmp_path / "bad.safetensors").write_text("no")
    with pytest.raises(ConfigError, match="not readable"):
        load_source(tmp_path / "bad.safetensors", [model()])


def test_missing_names_and_other_shapes_are_refused_by_name(tmp_path: Path) -> None:
    weights = model().state_dict()
    save_file({name: value for name, value in weights.items() if name != "1.bias"}, tmp_path / "a.safetensors")
    with pytest.raises(StateMismatchError, match=r"lacks 1\.bias"):
        load_source(tmp_path / "a.safetensors", [model()])
    save_file(weights | {"1.bias": torch.ones(9)}, tmp_path / "b.safetensors")
    with pytest.raises(StateMismatchError, match=r"1\.bias has shape \(9,\), the model has \(1,\)"):
        load_source(tmp_path / "b.safetensors", [model()])


def test_only_some_names_are_filled(tmp_path: Path) -> None:
    weights = model().state_dict()
    save_file(weights, tmp_path / "a.safetensors")
    other = model()
    before = other[0].weight.clone()
    load_source(tmp_path / "a.safetensors", [other], skip={"0.weight", "0.bias"})
    assert torch.equal(other[0].weight, before)
    assert torch.equal(other[1].weight, weights["1.weight"])
