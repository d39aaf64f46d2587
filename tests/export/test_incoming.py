"""Weights of others, of every kind that is read, and what is refused."""

import json
import os
import pickle
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed import checkpoint as dcp

from keepstep.errors import ConfigError, DamagedCheckpointError, KeepstepError, UnsupportedStateError
from keepstep.export.incoming import Incoming, open_weights


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def weights() -> dict[str, torch.Tensor]:
    return {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2), "b": torch.tensor(3)}


def opened(source: Path, prefix: str | None = None) -> Incoming:
    with ExitStack() as stack:
        incoming = open_weights(stack, source, prefix)
        return Incoming(incoming.form, {n: t.clone() for n, t in incoming.tensors.items()}, incoming.left_out)


def is_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("key", [None, "model", "state_dict", "model_state_dict"])
def test_a_file_of_torch_save_bare_and_wrapped(tmp_path: Path, key: str | None, new: bool) -> None:
    held: Any = weights() if key is None else {key: weights(), "epoch": 3, "optimizer": {"state": {0: torch.ones(1)}}}
    torch.save(held, tmp_path / "w.pt", _use_new_zipfile_serialization=new)
    found = opened(tmp_path / "w.pt")
    assert found.form == "torch"
    assert is_equal(found.tensors, weights())
    assert found.left_out == (() if key is None else ("epoch", "optimizer"))


def test_weights_that_lie_elsewhere_are_named_by_a_prefix(tmp_path: Path) -> None:
    torch.save({"ema": {"module": weights(), "decay": 0.9}, "model": {"x": torch.ones(1)}}, tmp_path / "w.pt")
    assert is_equal(opened(tmp_path / "w.pt", "ema.module").tensors, weights())
    with pytest.raises(ConfigError, match=r"nothing under 'nowhere'; there are ema, model"):
        opened(tmp_path / "w.pt", "nowhere")
    with pytest.raises(ConfigError, match=r"values that are no tensors: decay \(--weights PREFIX takes"):
        opened(tmp_path / "w.pt", "ema")


def test_tied_weights_and_views_of_a_file_of_torch_save(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    torch.save(model.state_dict() | {"part": model[0].weight.detach()[:, 1]}, tmp_path / "w.pt")
    with ExitStack() as stack:
        found = open_weights(stack, tmp_path / "w.pt").tensors
        assert found["0.weight"] is found["1.weight"]
        assert torch.equal(found["part"], model[0].weight.detach()[:, 1])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_folder_of_plain_dcp(tmp_path: Path, wrapped: bool) -> None:
    # The names begin with "model", as those of many language models do: they must not be taken for wrapped ones.
    own = {f"model.{name}": value for name, value in weights().items()}
    held: Any = {"model": own, "step": 4, "optimizer": {"lr": torch.ones(1)}} if wrapped else own
    dcp.save(held, checkpoint_id=tmp_path / "w", no_dist=True)
    found = opened(tmp_path / "w")
    assert (found.form, sorted(found.left_out)) == ("dcp", ["optimizer", "step"] if wrapped else [])
    assert is_equal(found.tensors, own)
    assert is_equal(opened(tmp_path / "w", "model.model" if wrapped else "model").tensors, weights())
    os.truncate(tmp_path / "w" / "__0_0.distcp", 40)
    with pytest.raises(DamagedCheckpointError, match="is not complete"):
        opened(tmp_path / "w")


def test_safetensors_with_and_without_an_index(tmp_path: Path) -> None:
    own = weights()
    save_file(own, tmp_path / "w.safetensors", metadata={"format": "pt", "c": "b"})
    assert is_equal(opened(tmp_path / "w.safetensors").tensors, own | {"c": own["b"]})
    (tmp_path / "w.safetensors").rename(tmp_path / "renamed")
    assert opened(tmp_path / "renamed").form == "safetensors"
    folder = tmp_path / "folder"
    folder.mkdir()
    names = {"a.weight": "1.safetensors", "a.bias": "1.safetensors", "b": "2.safetensors"}
    for file in ("1.safetensors", "2.safetensors"):
        save_file({name: own[name] for name in own if names[name] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 40, "c": "a.bias"}, "weight_map": names}))
    assert is_equal(opened(folder).tensors, own | {"c": own["a.bias"]})
    save_file(own, folder / "2.safetensors")
    with pytest.raises(ConfigError, match=r"two of its files hold a tensor with the name a\.bias"):
        opened(folder)
    index.write_text(json.dumps({"weight_map": {"a": "../renamed"}}))
    with pytest.raises(ConfigError, match="no file in its folder"):
        opened(folder)


def _write_unknown(folder: Path) -> None:
    (folder / "w").write_bytes(b"hello, this is a text")


def _write_empty(folder: Path) -> None:
    (folder / "w").write_bytes(b"")


def _write_folder(folder: Path) -> None:
    (folder / "w").mkdir()


def _write_checkpoint(folder: Path) -> None:
    (folder / "save-3").mkdir()
    (folder / "save-3" / "manifest.json").write_text("{}")
    (folder / "w").symlink_to("save-3")


def _cut(folder: Path) -> None:
    torch.save(weights(), folder / "w")
    os.truncate(folder / "w", 900)


def _cut_safetensors(folder: Path) -> None:
    save_file(weights(), folder / "w")
    os.truncate(folder / "w", os.path.getsize(folder / "w") - 3)


def _saver(value: Any) -> Any:
    return lambda folder: torch.save(value, folder / "w")


@pytest.mark.parametrize(
    ("write", "kind", "text"),
    [
        (lambda folder: None, ConfigError, "there is no such file or folder"),
        (_write_unknown, ConfigError, "of an unknown kind"),
        (_write_empty, ConfigError, "of an unknown kind"),
        (_write_folder, ConfigError, "a folder must hold .metadata, model.safetensors or"),
        (_write_checkpoint, ConfigError, "is a checkpoint of keepstep already"),
        (_cut, DamagedCheckpointError, "is not readable: RuntimeError: PytorchStreamReader failed"),
        (_cut_safetensors, DamagedCheckpointError, "is not readable: "),
        (lambda folder: (folder / "w").write_bytes(b"\x80\x02garbage"), DamagedCheckpointError, "is not readable"),
        (
            lambda folder: (folder / "w").write_bytes(pickle.dumps({"a": 1})),
            DamagedCheckpointError,
            "no pickle that",
        ),
        (_saver(nn.Linear(1, 1)), UnsupportedStateError, "can run any code (GLOBAL torch.nn.modules.linear.Linear)"),
        (_saver({"a": torch.ones(1), "b": Hostile()}), UnsupportedStateError, "(GLOBAL posix.system)"),
        (_saver([torch.ones(1)]), ConfigError, "holds no state dict, but a list"),
        (_saver({}), ConfigError, "it holds no tensors"),
        (_saver({"": torch.ones(1)}), ConfigError, "a tensor has no name"),
        (_saver({"a": torch.ones(1), "b": 3, "c": "x"}), ConfigError, "values that are no tensors: b, c"),
        (_saver({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}), ConfigError, "would have the name a.b"),
        (_saver({1: torch.ones(1), "1": torch.ones(1)}), ConfigError, "two of its values have the name 1"),
        (
            _saver({"model": {"a": torch.ones(1)}, "state_dict": {"a": torch.ones(1)}}),
            ConfigError,
            "may be model or state_dict: say which with --weights",
        ),
    ],
)
def test_what_is_refused_is_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any, kind: type[KeepstepError], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    with pytest.raises(kind) as caught:
        opened(tmp_path / "w")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "pwned").exists()
