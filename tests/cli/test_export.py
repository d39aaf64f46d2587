"""`keepstep export` as a person meets it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import keepstep
from tests.rig.command import keepstep as command


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    config = keepstep.CheckpointingConfig(save_dir=str(tmp_path / "runs"), period_steps=5)
    state = keepstep.JobState(model=nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    with keepstep.Checkpointer(config, state, "exp", handle_signals=False) as saver:
        saver.save(5)
    return tmp_path / "runs" / "exp" / "save-5"


def test_what_a_person_sees(checkpoint: Path, tmp_path: Path) -> None:
    done = command("export", str(checkpoint), "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "exported step 5 of exp to out: 4 tensors, 1 file, 872 B\n"


def test_options(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    words = ("--dtype", "bfloat16", "--max-shard-size", "200B", "--with", str(tmp_path), "--json")
    done = command("export", str(checkpoint), str(tmp_path / "out"), *words)
    facts = json.loads(done.stdout)
    assert (facts["step"], facts["tensors"], len(facts["files"])) == (5, 4, 4)
    assert "config.json" in facts["files"]
    found = load_file(tmp_path / "out" / "model-00001-of-00002.safetensors")
    assert {value.dtype for value in found.values()} == {torch.bfloat16}


def test_one_file_of_torch_save(checkpoint: Path, tmp_path: Path) -> None:
    done = command("export", str(checkpoint), "out.pt", "--to", "torch", "--dtype", "bfloat16", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("exported step 5 of exp to out.pt: 4 tensors, 1 file, ")
    state = torch.load(tmp_path / "out.pt", weights_only=True)
    assert {value.dtype for value in state.values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--to", "torch", "--with", "."), 2, "--with: one file of torch.save has no room for other files"),
        (("--max-shard-size", "big"), 2, "--max-shard-size: 'big' is no size; write 5GB, 500MB or a number of bytes"),
        (("--weights", "task.ema"), 2, "has no tensors under 'task.ema'; there are model"),
        (("--with", "nowhere"), 2, "nowhere has neither a configuration nor a tokenizer"),
        (("--source", "nowhere"), 2, "nowhere: no model state there"),
        (("--dtype", "int8"), 2, "'int8' is not one of"),
    ],
)
def test_bad_usage_is_told_in_a_line(
    checkpoint: Path, tmp_path: Path, words: tuple[str, ...], code: int, text: str
) -> None:
    done = command("export", str(checkpoint), "out", *words, cwd=tmp_path)
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_damage_and_a_place_that_cannot_be_written(checkpoint: Path, tmp_path: Path) -> None:
    done = command("export", str(checkpoint), "/proc/none/out")
    assert done.returncode == 1
    assert done.stderr.startswith("keepstep: export to /proc/none/out failed: ")
    assert len(done.stderr.splitlines()) == 1
    (checkpoint / "__0_0.distcp").unlink()
    done = command("export", str(checkpoint), "out", cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (4, 1)
    assert "is damaged and not exported: __0_0.distcp is missing" in done.stderr
