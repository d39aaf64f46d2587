"""`keepstep diff` as a person meets it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from keepstep.cli.main import app
from keepstep.errors import KeepstepError
from tests.rig.crafted import craft

W = np.linspace(0, 1, 5000, dtype=np.float32)


@pytest.fixture
def a(tmp_path: Path) -> Path:
    config = {"lr": 0.1, "data": {"path": "x"}}
    return craft(tmp_path / "a", 1, {"model.w": W, "model.v": W}, record={"seed": 1, "run": "one", "config": config})


@pytest.fixture
def b(tmp_path: Path) -> Path:
    tensors = {"model.w": W + np.float32(0.5), "model.v": W, "optimizer.new": W[:7]}
    return craft(
        tmp_path / "b", 1, tensors, record={"seed": 2, "run": "one", "config": {"lr": 0.1, "data": {"path": "y"}}}
    )


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["diff", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


def test_what_a_person_sees(a: Path, b: Path) -> None:
    lines = run(a, b).splitlines()
    assert lines[0] == f"A  {a}: checkpoint of step 1, run one, 40.3 kB, written by 1 ranks"
    cells = [line.split() for line in lines]
    assert ["seed", "1", "2"] in cells
    assert ["data.path", '"x"', '"y"'] in cells
    assert ["model", "1", "1", "0", "0", "0"] in cells
    assert ["optimizer", "0", "0", "0", "1", "0"] in cells
    assert ["optimizer.new", "float32", "7", "28", "B"] in cells
    assert ["model.w", "float32", "5000", "20.0", "kB"] in cells
    assert "lr" not in [c[0] for c in cells if c]
    assert lines[-1] == "2 tensors or values differ"


def test_values(a: Path, b: Path) -> None:
    cells = [line.split() for line in run(a, b, "--values").splitlines()]
    assert ["model.w", "float32", "5000", "0.866", "0.5", "0.5", "5,000", "of", "5,000", "-"] in cells
    assert "different, by ||a-b|| / ||a||:" in run(a, b, "--values")


def test_top(tmp_path: Path) -> None:
    a, b = (craft(tmp_path / str(n), 1, {f"model.{i}": W + n for i in range(15)}) for n in (0, 1))
    assert "different, largest first, 10 of 15:" in run(a, b)
    assert run(a, b, "--top", 3).count("float32") == 3
    assert run(a, b, "--top", 0, code=2)


def test_exit_codes(a: Path, b: Path) -> None:
    assert run(a, b)
    assert run(a, b, "--exit-code", code=1)
    assert "they are the same" in run(a, a, "--exit-code")
    assert run(a, a / "nowhere.safetensors", code=1) == ""


def test_when_it_was_saved_makes_no_difference(tmp_path: Path) -> None:
    a, b = (
        craft(tmp_path / str(n), 1, {"model.w": W}, record={"created_at": str(n), "attempt": n, "seed": 1})
        for n in (0, 1)
    )
    assert "they are the same" in run(a, b, "--exit-code")
    c = craft(tmp_path / "c", 1, {"model.w": W}, record={"created_at": "2", "attempt": 2, "seed": 3})
    assert "the state is the same" in run(a, c, "--exit-code", code=1)
    d = craft(tmp_path / "d", 1, {"model.w": W}, record={"seed": 1, "config": {"lr": 1}})
    e = craft(tmp_path / "e", 1, {"model.w": W}, record={"seed": 1, "config": {"lr": 2}})
    assert "the state is the same" in run(d, e, "--exit-code", code=1)


def test_components(a: Path, b: Path) -> None:
    assert "optimizer" not in run(a, b, "--components", "model")
    assert [t["component"] for t in json.loads(run(a, b, "--components", "model, optimizer", "--json"))["tallies"]] == [
        "model",
        "optimizer",
    ]


def test_json(a: Path, b: Path) -> None:
    facts = json.loads(run(a, b, "--values", "--json"))
    assert facts["a"]["step"] == 1
    assert facts["same"] is False
    assert facts["record"] == [{"field": "seed", "a": "1", "b": "2"}]
    (one,) = facts["different"]
    assert one["kind"] == {"key": "model.w", "dtype": "float32", "shape": [5000], "size": 20000}
    assert one["values"]["max_abs"] == pytest.approx(0.5)


def test_nothing_from_a_file_steers_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\u202e\n\ud800"
    a = craft(tmp_path / "a", 1, {f"model.{evil}": W}, record={"run": evil, evil: evil, "config": {evil: evil}})
    b = craft(tmp_path / "b", 1, {f"model.{evil}": W + 1, f"{evil}.x": W}, record={})
    for words in ((a, b), (b, a), (a, b, "--values"), (a, b, "--json")):
        output = run(*words)
        assert not set("\x1b\x07\u202e\ud800") & set(output)
        assert "owned" in output


def test_errors_in_one_line(a: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from keepstep.cli.main import main; main()", "diff", str(a), "s3://b/checkpoint-1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "keepstep pull s3://b/checkpoint-1 FOLDER" in done.stderr
    with pytest.raises(KeepstepError):
        app(["diff", str(a), str(a.parent)], standalone_mode=False)


def test_it_needs_no_torch_and_by_digests_no_numpy(a: Path, b: Path) -> None:
    code = (
        "import sys; from keepstep.ops.diff import diff; diff(*sys.argv[1:]); "
        "print({'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(a), str(a)], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
    code = code.replace("1:])", "1:], values=True)")
    done = subprocess.run([sys.executable, "-c", code, str(a), str(b)], capture_output=True, text=True, check=True)
    assert done.stdout == "{'numpy'}\n"
