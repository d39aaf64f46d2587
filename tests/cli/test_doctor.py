"""`keepstep doctor` as a person meets it."""

import json
import os
from pathlib import Path

import pytest

from keepstep.storage.local import free_bytes
from tests.rig.command import keepstep


def test_a_fit_folder(tmp_path: Path) -> None:
    done = keepstep("doctor", str(tmp_path), "--mib", "1", "--size", "1MB", "--grace", "60")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "fine     write: can be written, and reads back what was written" in lines
    assert lines[-1] == f"{tmp_path} is fit to hold checkpoints"
    assert "of 60.0 s grace" in lines[-2]
    assert os.listdir(tmp_path) == []


def test_no_room(tmp_path: Path) -> None:
    free = free_bytes(tmp_path)
    assert free is not None
    done = keepstep("doctor", str(tmp_path), "--mib", "0", "--size", str(free), "--keep", "1")
    assert done.returncode == 1
    assert "unfit    space: " in done.stdout
    assert "do:  free some space, or keep fewer (num_to_keep)" in done.stdout
    assert done.stdout.splitlines()[-1] == f"{tmp_path} is unfit to hold checkpoints"


def test_json(tmp_path: Path) -> None:
    done = keepstep("doctor", str(tmp_path), "--mib", "1", "--json")
    found = json.loads(done.stdout)
    assert found["fit"] is True
    assert {one["level"] for one in found["findings"]} <= {"fine", "warning"}
    assert found["facts"]["speed"]["size"] == 2**20


@pytest.mark.parametrize("size", ["much", "0", "-1"])
def test_a_size_that_is_none(tmp_path: Path, size: str) -> None:
    done = keepstep("doctor", str(tmp_path), f"--size={size}")
    assert done.returncode == 2
    assert "--size: " in done.stderr
