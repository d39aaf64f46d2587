"""docs/mapper.md is true: its mapper is run, its dry run is compared, its table has every kind of step."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from keepstep.config.mapper import KINDS

TEXT = (Path(__file__).parents[2] / "docs/mapper.md").read_text()


def test_the_example_of_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert [language for language, _ in blocks] == ["yaml", "python", ""]
    yaml, python, dry_run = (content for _, content in blocks)
    monkeypatch.chdir(tmp_path)
    Path("mapper.yaml").write_text(yaml)
    shapes = {
        "model.embed_tokens.weight": (48, 24),
        "lm_head.weight": (48, 24),
        "model.layers.0.self_attn.q_proj.weight": (32, 24),
        "model.layers.0.self_attn.k_proj.weight": (16, 24),
        "model.layers.0.self_attn.v_proj.weight": (16, 24),
        "model.layers.0.mlp.experts.0.up_proj.weight": (20, 24),
        "model.layers.0.mlp.experts.1.up_proj.weight": (20, 24),
    }
    weights = {name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    names: dict[str, Any] = {"weights": weights}
    exec(compile(python, "docs/mapper.md", "exec"), names)
    assert capsys.readouterr().out == dry_run
    assert set(names["ours"]) == {line.split()[0] for line in dry_run.splitlines()}
    assert names["theirs"].keys() == weights.keys()
    assert all(torch.equal(names["theirs"][name], tensor) for name, tensor in weights.items())


def test_the_table_has_every_kind_of_step() -> None:
    rows = re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE)
    assert {kind for row in rows for kind in re.findall(r"`(\w+)`", row)} == set(KINDS)
