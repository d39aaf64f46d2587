import json
from pathlib import Path

import pytest
from torch import nn

from keepstep.errors import ConfigError
from keepstep.export.folder import read_export
from keepstep.export.weights import export_weights


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"hidden": 4, "dtype": "float32"}))
    (folder / "blob").write_text("{}")
    (folder / "tokenizer.json").symlink_to("blob")  # as in a cache of the Hub
    (folder / "model.safetensors").write_text("weights of the base")
    (folder / "modeling_mine.py").write_text("code")
    return folder


def test_configuration_and_tokenizer_go_along_and_nothing_else(
    tied: tuple[Path, nn.Module], tmp_path: Path, base: Path
) -> None:
    done = export_weights(tied[0], tmp_path / "out", side_files=base)
    assert list(done.files) == ["model.safetensors", "config.json", "tokenizer.json"]
    assert (tmp_path / "out" / "config.json").read_text() == (base / "config.json").read_text()
    assert not (tmp_path / "out" / "tokenizer.json").is_symlink()
    assert list(read_export(tmp_path / "out")["files"]) == list(done.files)
    export_weights(tied[0], tmp_path / "half", side_files=base, dtype="float16")
    assert json.loads((tmp_path / "half" / "config.json").read_text()) == {"hidden": 4, "dtype": "float16"}


def test_what_a_user_has_changed_stays(
    tied: tuple[Path, nn.Module], tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    export_weights(tied[0], tmp_path / "out", side_files=base)
    (base / "tokenizer.json").write_text("[1]")
    (tmp_path / "out" / "config.json").write_text("mine")
    export_weights(tied[0], tmp_path / "out", side_files=base)
    assert (tmp_path / "out" / "config.json").read_text() == "mine"
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "[1]"
    assert "config.json is not keepstep's and stays as it is" in caplog.text


def test_a_folder_without_any_is_refused(tied: tuple[Path, nn.Module], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a configuration nor a tokenizer"):
        export_weights(tied[0], tmp_path / "out", side_files=tmp_path)
    assert not (tmp_path / "out").exists()
