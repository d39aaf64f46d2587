"""A model state comes in: whatever its form, under any layout, and only if all of it fits."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import keepstep
from keepstep.config.mapper import Concatenate, Keep, Parallel, Rename, Split
from keepstep.errors import ConfigError, DamagedCheckpointError, StateMismatchError
from keepstep.export.loading import find_mapper, load_source
from keepstep.export.mapper import Mapper, mapper_for
from keepstep.export.origin import FilesOrigin
from keepstep.export.weights import export_weights
from keepstep.job.train import TrainingJob
from tests.rig import forks, jobs
from tests.rig.fused import FusedDecoder

transformers = pytest.importorskip("transformers")

LLAMA = {
    "vocab_size": 48, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip


class Net(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 6, bias=False)
        if tied:
            self.head.weight = self.embed.weight


def net(seed: int, tied: bool = False) -> Net:
    torch.manual_seed(seed)
    made = Net(tied)
    with torch.no_grad():
        for value in made.state_dict().values():
            value.add_(torch.randn(value.shape).to(value.dtype))
    return made


def checkpoint(folder: Path, model: nn.Module) -> Path:
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=1)
    with keepstep.Checkpointer(config, keepstep.JobState(model=model), "run") as saver:
        saver.save(1)
    return folder / "run" / "save-1"


def sources(folder: Path, model: nn.Module) -> dict[str, Path]:
    """The same weights in every form."""
    saved = checkpoint(folder, model)
    export_weights(saved, folder / "whole")
    export_weights(saved, folder / "shards", max_shard_size=60)
    assert len(list((folder / "shards").glob("*.safetensors"))) > 1
    return {
        "a checkpoint": saved,
        "an export": folder / "whole",
        "an export in shards": folder / "shards",
        "a file": folder / "whole" / "model.safetensors",
    }


@pytest.mark.parametrize("tied", [False, True])
def test_every_form_gives_the_same_bits(tmp_path: Path, tied: bool) -> None:
    model = net(1, tied)
    for name, source in sources(tmp_path, model).items():
        other = net(2, tied)
        assert load_source(source, [other]) == (), name
        for key, value in model.state_dict().items():
            assert torch.equal(other.state_dict()[key], value), (name, key)


def test_weights_that_are_tied_here_and_not_there_take_the_first(tmp_path: Path) -> None:
    save_file({k: v for k, v in net(1).state_dict().items() if k != "head.weight"}, tmp_path / "a.safetensors")
    model = net(2, tied=True)
    load_source(tmp_path / "a.safetensors", [model])
    assert torch.equal(model.head.weight, net(1).embed.weight)
    assert model.head.weight is model.embed.weight


def test_all_that_does_not_fit_is_listed_and_nothing_is_copied(tmp_path: Path) -> None:
    state = net(1).state_dict()
    save_file(
        {"embed.weight": state["embed.weight"], "head.weight": torch.zeros(7, 4), "rotary": torch.zeros(1)},
        tmp_path / "a.safetensors",
    )
    model = net(2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(StateMismatchError) as caught:
        load_source(tmp_path / "a.safetensors", [model])
    text = str(caught.value)
    assert "lacks norm.weight, norm.bias" in text
    assert "head.weight has shape (7, 4), the model has (6, 4)" in text
    assert "nobody takes, rotary" in text
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_is_left_over_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_file(net(1).state_dict() | {"rotary": torch.zeros(1)}, tmp_path / "a.safetensors")
    assert load_source(tmp_path / "a.safetensors", [net(2)]) == ("rotary",)
    weights = jobs.Net().state_dict() | {"rotary": torch.zeros(1)}
    save_file(weights, tmp_path / "b.safetensors")
    factory = {"source_checkpoint": str(tmp_path / "b.safetensors")}
    with caplog.at_level(logging.WARNING, "keepstep"):
        TrainingJob(jobs.training(tmp_path, 1, model_stage_factory=factory)).run()
    assert any("no place for rotary" in one for one in caplog.messages)


def test_a_checkpoint_that_is_damaged_gives_nothing(tmp_path: Path) -> None:
    saved = checkpoint(tmp_path, net(1))
    (shard,) = saved.glob("*.distcp")
    data = bytearray(shard.read_bytes())
    data[data.index(net(1).embed.weight.detach().numpy().tobytes()) + 1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DamagedCheckpointError):
        load_source(saved, [net(2)])


def _read_by_this_rank(source: Path, kind: str) -> tuple[int, bool]:
    """Elements that this rank has read, and whether its parts are right."""
    count = 0
    fill = FilesOrigin.fill

    def counting(self: FilesOrigin, wanted: Any) -> None:
        nonlocal count
        count += sum(box.elements for _, box, _ in wanted)
        fill(self, wanted)

    FilesOrigin.fill = counting  # type: ignore[method-assign]
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Linear(8, 5, bias=False))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    both = Parallel(steps=(Split(take="0.weight", give=("a", "b"), sizes=(3, 5)), Keep(names="1.weight")))
    joined = Concatenate(take=("a", "b"), give="0.weight", sizes=(3, 5))
    mapper = {
        "plain": None,
        "renamed": Mapper((Rename(names={"0.weight": "x"}), Rename(names={"x": "0.weight"}), Keep(names="1.weight"))),
        "joined": Mapper((both, joined)),
    }[kind]
    load_source(source, [model], mapper=mapper)
    torch.manual_seed(1)
    expected = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Linear(8, 5, bias=False)).state_dict()
    return count, all(torch.equal(v.full_tensor(), expected[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("kind", ["plain", "renamed", "joined"])
def test_each_rank_reads_what_it_holds(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(1)
    save_file(
        nn.Sequential(nn.Linear(6, 8, bias=False), nn.Linear(8, 5, bias=False)).state_dict(),
        tmp_path / "model.safetensors",
    )
    found = forks.values(lambda: _read_by_this_rank(tmp_path, kind), 2)
    assert all(right for _, right in found)
    if kind != "joined":
        assert sum(count for count, _ in found) == 6 * 8 + 8 * 5


def llama(folder: Path) -> Any:
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**LLAMA)).eval()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert (folder / "model.safetensors.index.json").exists()
    return model


def test_a_hugging_face_folder_comes_in_through_its_mapper_and_goes_out_again(tmp_path: Path) -> None:
    theirs = llama(tmp_path / "hf")
    ids = torch.arange(9)[None]
    model = FusedDecoder(theirs.config, interleaved=False).eval()
    assert load_source(tmp_path / "hf", [model], mapper=find_mapper("auto", tmp_path / "hf")) == ()
    with torch.no_grad():
        torch.testing.assert_close(model(ids), theirs(ids).logits, rtol=1e-4, atol=1e-5)
    saved = checkpoint(tmp_path, model)
    mapper = mapper_for(json.loads((tmp_path / "hf" / "config.json").read_text()))
    export_weights(saved, tmp_path / "out", mapper=mapper.invert(), side_files=tmp_path / "hf", max_shard_size=20_000)
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        assert torch.equal(back(ids).logits, theirs(ids).logits)


def test_a_mapper_that_does_not_fit_says_why(tmp_path: Path) -> None:
    save_file(net(1).state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"steps\.0 rename: nowhere is missing"):
        load_source(tmp_path, [net(2)], mapper=Mapper((Rename(names={"nowhere": "embed.weight"}),)))
    with pytest.raises(ConfigError, match=r"config\.json is missing"):
        find_mapper("auto", tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt5"}')
    with pytest.raises(ConfigError, match="there is no mapper for it"):
        find_mapper("auto", tmp_path)
    with pytest.raises(ConfigError, match="mapper file"):
        find_mapper(str(tmp_path / "nowhere.yaml"), tmp_path)
