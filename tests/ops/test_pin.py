"""A pinned checkpoint outlives retention, also of a Trainer's folder, until it is unpinned."""

import json
import shutil
from pathlib import Path

import pytest

from keepstep.errors import CheckpointNotFoundError, ConfigError
from keepstep.ops.listing import list_folder
from keepstep.ops.pin import pin_checkpoint
from keepstep.ops.prune import plan_prune
from keepstep.storage.candidates import digest_of
from keepstep.storage.deletion import delete_checkpoint
from keepstep.storage.leases import held_steps, pin_notes, pinned_steps
from keepstep.storage.survey import inspect
from tests.rig.command import keepstep
from tests.rig.folders import make_checkpoint, names
from tests.rig.trainer_folders import adopt, make_trainer_checkpoint


@pytest.mark.parametrize("prefix", ["save", "checkpoint"])
def test_a_pinned_checkpoint_stays(prefix: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (10, 20, 30, 40):
        if prefix == "save":
            make_checkpoint(run, step)
        else:
            make_trainer_checkpoint(run, step)
    if prefix == "checkpoint":
        adopt(run)
    pinned = run / f"{prefix}-10"
    assert "is pinned" in keepstep("pin", str(pinned)).stdout
    assert "was pinned already" in keepstep("pin", str(pinned)).stdout
    listed = json.loads(keepstep("ls", str(run), "--json").stdout)
    assert [one["pinned"] for one in listed["checkpoints"]] == [True, False, False, False]
    assert "complete, pinned" in keepstep("ls", str(run)).stdout
    pruned = keepstep("prune", str(run), "--keep", "1").stdout
    row = pruned.splitlines()[1].split()
    assert (row[0], row[-2:]) == (f"{prefix}-10", ["keep", "pinned"])
    assert sorted(path.name for path in run.glob(f"{prefix}-*")) == [f"{prefix}-10", f"{prefix}-40"]
    assert "not pinned any more" in keepstep("unpin", str(pinned)).stdout
    assert "was not pinned" in keepstep("unpin", str(pinned)).stdout
    keepstep("prune", str(run), "--keep", "1")
    assert sorted(path.name for path in run.glob(f"{prefix}-*")) == [f"{prefix}-40"]


def test_a_note_says_why_and_another_takes_its_place(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "run", 10)
    make_checkpoint(tmp_path / "run", 20)
    assert (
        "is pinned: for \\x1b[31m review\n" in keepstep("pin", str(checkpoint), "--note", "for \x1b[31m review").stdout
    )
    assert "was pinned already: for" in keepstep("pin", str(checkpoint)).stdout
    changed = json.loads(keepstep("pin", str(checkpoint), "--note", "sent", "--json").stdout)
    assert (changed["changed"], changed["note"]) == (True, "sent")
    table = keepstep("ls", str(tmp_path / "run")).stdout.splitlines()
    assert table[0].endswith("NOTE")
    assert table[1].endswith("  sent")
    listed = json.loads(keepstep("ls", str(tmp_path / "run"), "--json").stdout)
    assert [one["note"] for one in listed["checkpoints"]] == ["sent", ""]
    assert "pinned: sent" in keepstep("prune", str(tmp_path / "run"), "--keep", "1", "--dry-run").stdout
    assert pin_checkpoint(checkpoint, "").note == ""
    with pytest.raises(ConfigError, match="1001 characters"):
        pin_checkpoint(checkpoint, "x" * 1001)
    assert pinned_steps(tmp_path / "run") == {10}


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"note": 7}'])
def test_a_pin_is_one_whatever_it_holds(content: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, 10)
    pin_checkpoint(checkpoint)
    (tmp_path / ".keepstep" / "leases" / "save-10.pin").write_text(content)
    assert pin_notes(tmp_path) == {10: ""}
    assert held_steps(tmp_path) == {10}
    assert pin_checkpoint(checkpoint, "why").note == "why"


def test_a_pin_is_of_one_checkpoint_and_not_of_its_step(tmp_path: Path) -> None:
    first = make_checkpoint(tmp_path, 10)
    make_checkpoint(tmp_path, 20)
    pin_checkpoint(first, "sent")
    aside = tmp_path / ".keepstep" / "set-aside" / "save-10-2"
    aside.parent.mkdir()
    first.rename(aside)
    assert held_steps(tmp_path) == {10}
    second = make_checkpoint(tmp_path, 10, attempt=2)
    listed = list_folder(tmp_path).checkpoints[0]
    assert (listed.pinned, listed.note, listed.has_other_pin) == (False, "", True)
    assert "the pin of step 10 is of another checkpoint" in keepstep("ls", str(tmp_path)).stdout
    assert [one.keep for one in plan_prune(tmp_path, 1).verdicts] == [False, True]
    again = pin_checkpoint(second)
    assert (again.changed, again.note) == (True, "")
    assert list_folder(tmp_path).checkpoints[0].pinned
    assert not delete_checkpoint(tmp_path, 10, 2)


def test_another_checkpoint_than_the_pinned_one_is_deleted(tmp_path: Path) -> None:
    pin_checkpoint(make_checkpoint(tmp_path, 10))
    shutil.rmtree(tmp_path / "save-10")
    make_checkpoint(tmp_path, 10, attempt=2)
    assert delete_checkpoint(tmp_path, 10, 2)


@pytest.mark.parametrize("content", ["", '{"note": "old"}'])
def test_a_pin_without_a_digest_pins_whatever_has_the_step(content: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, 10)
    pin_checkpoint(checkpoint)
    path = tmp_path / ".keepstep" / "leases" / "save-10.pin"
    path.write_text(content)
    assert list_folder(tmp_path).checkpoints[0].pinned
    assert not delete_checkpoint(tmp_path, 10, 1)
    assert not pin_checkpoint(checkpoint).changed
    assert digest_of(inspect(checkpoint, 10)) in path.read_text()


def test_a_checkpoint_that_is_adopted_anew_keeps_its_pin(tmp_path: Path) -> None:
    make_trainer_checkpoint(tmp_path, 10)
    checkpoint = adopt(tmp_path) / "checkpoint-10"
    pin_checkpoint(checkpoint, "sent")
    for name in ("manifest.json", "run.json"):
        (checkpoint / name).unlink()
    (checkpoint / "more.txt").write_text("more")
    adopt(tmp_path)
    assert list_folder(tmp_path).checkpoints[0].note == "sent"


def test_what_is_not_whole_is_not_pinned(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError):
        pin_checkpoint(tmp_path / "save-10")
    checkpoint = make_checkpoint(tmp_path, 10)
    (checkpoint / "manifest.json").unlink()
    with pytest.raises(CheckpointNotFoundError, match="incomplete"):
        pin_checkpoint(checkpoint)
    assert names(tmp_path) == ["save-10"]
