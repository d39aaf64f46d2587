"""Adapters travel in PEFT's own layout, with their tokenizer, and only to the base that they were trained on."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file

from keepstep.errors import ConfigError, DamagedCheckpointError, GuardRefusedError, StateMismatchError
from keepstep.export.adapter import check_adapter, export_adapter, load_adapter
from keepstep.export.weights import export_weights
from tests.rig import lora
from tests.rig.command import keepstep

PLAIN: dict[str, Any] = {"r": 2, "target_modules": ["base"]}
CONFIGS = {
    "plain": PLAIN,
    "with a head of its own": PLAIN | {"modules_to_save": ["head"]},
    "with an embedding": {"r": 4, "target_modules": ["base", "emb"], "lora_alpha": 3},
    "rank stabilised, with patterns": {
        "r": 2,
        "target_modules": ["base", "head"],
        "use_rslora": True,
        "rank_pattern": {"head": 3},
        "alpha_pattern": {"head": 5},
    },
    "with biases": PLAIN | {"bias": "lora_only"},
}


@pytest.fixture
def words(tmp_path: Path) -> Path:
    lora.tokenizer().save_pretrained(tmp_path / "words")
    return tmp_path / "words"


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("only_trainable", [True, False])
def test_peft_loads_it_and_computes_the_same(tmp_path: Path, words: Path, kind: str, only_trainable: bool) -> None:
    model = lora.trained(tmp_path, LoraConfig(**CONFIGS[kind]), only_trainable=only_trainable)
    if kind == "with biases" and not only_trainable:
        return  # which biases of a whole model belong to the adapter its checkpoint does not say
    export_adapter(tmp_path / "run" / "save-3", tmp_path / "out", tokenizer=words)
    loaded = peft.PeftModel.from_pretrained(lora.net(), tmp_path / "out").eval()
    assert torch.equal(loaded(lora.IDS), model(lora.IDS))
    assert not torch.equal(lora.net()(lora.IDS), model(lora.IDS))
    own = peft.get_peft_model_state_dict(model, adapter_name="mine", save_embedding_layers=False)
    assert load_file(tmp_path / "out" / "adapter_model.safetensors").keys() == own.keys()
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("me/base", "0e9e39f")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (words / "tokenizer.json").read_bytes()


def test_of_several_adapters_one_is_chosen_and_they_do_not_mix(tmp_path: Path, words: Path) -> None:
    lora.trained(tmp_path, LoraConfig(**PLAIN), LoraConfig(r=3, target_modules=["base"]), only_trainable=False)
    checkpoint = tmp_path / "run" / "save-3"
    with pytest.raises(ConfigError, match="mine, other: say which"):
        export_adapter(checkpoint, tmp_path / "out", tokenizer=words)
    with pytest.raises(ConfigError, match="no adapter 'third'; there are: mine, other"):
        export_adapter(checkpoint, tmp_path / "out", adapter="third", tokenizer=words)
    for name, rank in (("mine", 2), ("other", 3)):
        export_adapter(checkpoint, tmp_path / name, adapter=name, tokenizer=words)
        weights = load_file(tmp_path / name / "adapter_model.safetensors")
        assert weights["base_model.model.base.lora_A.weight"].shape == (rank, 16)
        assert len(weights) == 2


def test_without_a_tokenizer_it_is_refused_unless_that_is_meant(tmp_path: Path, words: Path) -> None:
    lora.trained(tmp_path, LoraConfig(**PLAIN))
    checkpoint = tmp_path / "run" / "save-3"
    with pytest.raises(ConfigError, match="subtly wrong"):
        export_adapter(checkpoint, tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="tokenizer"):
        export_adapter(checkpoint, tmp_path / "out", tokenizer=tmp_path / "empty")
    lora.tokenizer(("a", "c", "p")).save_pretrained(tmp_path / "other")
    with pytest.raises(GuardRefusedError, match="another tokenizer"):
        export_adapter(checkpoint, tmp_path / "out", tokenizer=tmp_path / "other")
    assert not (tmp_path / "out").exists()
    files = export_adapter(checkpoint, tmp_path / "out", without_tokenizer=True)
    assert sorted(files) == ["adapter_config.json", "adapter_model.safetensors"]


def test_it_goes_onto_its_own_base_and_with_its_own_tokenizer_only(tmp_path: Path, words: Path) -> None:
    base, other = lora.save_base(tmp_path / "base"), lora.save_base(tmp_path / "other", seed=1)
    model = lora.trained(tmp_path, LoraConfig(**PLAIN), base=base)
    out = tmp_path / "out"
    export_adapter(tmp_path / "run" / "save-3", out, tokenizer=words)
    loaded = load_adapter(lora.net(), out, base=base, tokenizer=lora.tokenizer()).eval()
    assert torch.equal(loaded(lora.IDS), model(lora.IDS))
    with pytest.raises(GuardRefusedError, match="me/base at revision 0e9e39f"):
        load_adapter(lora.net(1), out, base=other)
    with pytest.raises(GuardRefusedError, match="another tokenizer"):
        check_adapter(out, tokenizer=lora.tokenizer(("a", "c", "p")))
    with pytest.raises(ConfigError, match="no adapter that keepstep exported"):
        check_adapter(base)


@pytest.mark.parametrize("kind", [name for name in CONFIGS if name != "with biases"])
def test_merged_weights_are_those_that_peft_merges(tmp_path: Path, kind: str) -> None:
    base = lora.save_base(tmp_path / "base")
    model = lora.trained(tmp_path, LoraConfig(**CONFIGS[kind]))
    export_weights(tmp_path / "run" / "save-3", tmp_path / "out", base, merge=True)
    merged = load_file(tmp_path / "out" / "model.safetensors")
    expected = model.merge_and_unload().state_dict()
    assert merged.keys() == expected.keys() == lora.net().state_dict().keys()
    for name, value in expected.items():
        torch.testing.assert_close(merged[name], value, rtol=1e-6, atol=1e-7)
    plain = lora.net()
    plain.load_state_dict(merged)
    torch.testing.assert_close(plain(lora.IDS), model(lora.IDS), rtol=1e-5, atol=1e-6)


def test_a_merge_in_pieces_is_a_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = lora.save_base(tmp_path / "base")
    lora.trained(tmp_path, LoraConfig(r=4, target_modules=["base", "emb"]))
    export_weights(tmp_path / "run" / "save-3", tmp_path / "whole", base, merge=True)
    monkeypatch.setattr("keepstep.export.stream._PIECE", 400)
    export_weights(tmp_path / "run" / "save-3", tmp_path / "pieces", base, merge=True)
    whole, pieces = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "pieces"))
    for name in whole:
        torch.testing.assert_close(pieces[name], whole[name], rtol=1e-6, atol=1e-7)


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    lora.trained(tmp_path / "a", LoraConfig(**PLAIN), base=lora.save_base(tmp_path / "base"))
    checkpoint = tmp_path / "a" / "run" / "save-3"
    for name, weights in {
        "lacks": {"emb.weight": torch.zeros(8, 16)},
        "shape": lora.net().state_dict() | {"base.weight": torch.zeros(32, 8)},
    }.items():
        (tmp_path / name).mkdir()
        save_file(weights, tmp_path / name / "model.safetensors")
        with pytest.raises(ConfigError, match=r"is not the base of this adapter"):
            export_weights(checkpoint, tmp_path / "out", tmp_path / name, merge=True)
    lora.trained(tmp_path / "b", LoraConfig(**PLAIN, use_dora=True))
    with pytest.raises(ConfigError, match="cannot be merged"):
        export_weights(tmp_path / "b" / "run" / "save-3", tmp_path / "out", tmp_path / "base", merge=True)
    assert not (tmp_path / "out").exists()


def test_another_base_than_the_run_was_begun_with_is_refused(tmp_path: Path) -> None:
    lora.trained(tmp_path, LoraConfig(**PLAIN))
    with pytest.raises(StateMismatchError, match="other weights than those that the run was begun with"):
        export_weights(tmp_path / "run" / "save-3", tmp_path / "out", lora.save_base(tmp_path / "o", 1), merge=True)
    assert not (tmp_path / "out").exists()


def test_damage_is_found_and_nothing_is_left(tmp_path: Path, words: Path) -> None:
    lora.trained(tmp_path, LoraConfig(**PLAIN))
    (shard,) = (tmp_path / "run" / "save-3").glob("*.distcp")
    data = bytearray(shard.read_bytes())
    weights = load_after_export(tmp_path, words)["base_model.model.base.lora_A.weight"].numpy().tobytes()
    data[bytes(data).index(weights) + 5] ^= 1
    shard.write_bytes(data)
    with pytest.raises(DamagedCheckpointError):
        export_adapter(tmp_path / "run" / "save-3", tmp_path / "out", tokenizer=words)
    assert not [name for name in os.listdir(tmp_path) if "out" in name]


def load_after_export(folder: Path, words: Path) -> dict[str, torch.Tensor]:
    export_adapter(folder / "run" / "save-3", folder / "first", tokenizer=words)
    found = load_file(folder / "first" / "adapter_model.safetensors")
    shutil.rmtree(folder / "first")
    return found


def test_the_command_line(tmp_path: Path, words: Path) -> None:
    base = lora.save_base(tmp_path / "base")
    lora.trained(tmp_path, LoraConfig(**PLAIN))
    checkpoint = str(tmp_path / "run" / "save-3")
    refused = keepstep("export", checkpoint, str(tmp_path / "out"), "--to", "peft")
    assert refused.returncode == 2
    assert "--without-tokenizer" in refused.stderr
    done = keepstep("export", checkpoint, str(tmp_path / "out"), "--to", "peft", "--with", str(words))
    assert done.returncode == 0, done.stderr
    assert "adapter_model.safetensors" in done.stdout
    merged = keepstep("export", checkpoint, str(tmp_path / "merged"), "--merge-base", str(base))
    assert merged.returncode == 0, merged.stderr
    assert load_file(tmp_path / "merged" / "model.safetensors").keys() == lora.net().state_dict().keys()
