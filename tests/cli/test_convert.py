"""`keepstep convert` as a person meets it."""

import json
from pathlib import Path

import pytest
import torch

from tests.rig.command import keepstep as command


@pytest.fixture
def source(tmp_path: Path) -> Path:
    torch.save({"model": {"a.weight": torch.ones(4, 4), "a.bias": torch.ones(4)}, "epoch": 3}, tmp_path / "w.pt")
    return tmp_path / "w.pt"


def test_in_and_out_again(source: Path, tmp_path: Path) -> None:
    done = command("convert", "w.pt", "run", "--step", "20", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "converted w.pt (torch) to run/save-20: 2 tensors, 80 B\nleft out: epoch\n"
    assert command("verify", "run", cwd=tmp_path).returncode == 0
    shown = json.loads(command("show", "run/save-20", "--json", cwd=tmp_path).stdout)
    assert (shown["step"], shown["parameters"]) == (20, 20)
    assert command("export", "run/save-20", "out.safetensors", cwd=tmp_path).returncode == 0
    assert command("diff", "out.safetensors", "run/save-20", cwd=tmp_path).returncode == 0
    again = command("convert", "w.pt", "run/save-21", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["checkpoint"] == "run/save-21"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("nowhere", "run"), 2, "nowhere: there is no such file or folder"),
        (("w.pt", "run", "--weights", "ema"), 2, "w.pt: it has nothing under 'ema'; there are model"),
        (("w.pt", "run", "--step", "-1"), 2, "--step -1: must be 0 or more"),
        (("cut.pt", "run"), 4, "cut.pt is not readable"),
        (("w.pt", "w.pt"), 1, "preparing to save to w.pt"),
    ],
)
def test_what_cannot_work_is_told_in_a_line(
    source: Path, tmp_path: Path, words: tuple[str, ...], code: int, text: str
) -> None:
    (tmp_path / "cut.pt").write_bytes(source.read_bytes()[:700])
    done = command("convert", *words, cwd=tmp_path)
    assert done.returncode == code
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
