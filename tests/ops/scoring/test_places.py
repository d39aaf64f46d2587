"""Checkpoints where a watcher finds them."""

import os
from pathlib import Path

import pytest
import torch

from keepstep.config.address import parse_address
from keepstep.errors import CheckpointNotFoundError, CouldNotLookError
from keepstep.integrations.lightning import VerifiedCheckpointIO
from keepstep.ops.best import find_best, pin_best
from keepstep.ops.pin import pin_checkpoint, unpin_checkpoint
from keepstep.ops.scoring import places
from keepstep.ops.scoring.places import LocalPlace, MirrorPlace, place_for
from keepstep.ops.scoring.watcher import WatchOptions
from keepstep.ops.watch import watch
from keepstep.plan import layout
from keepstep.storage.deletion import delete_checkpoint
from keepstep.storage.exit_note import write_exit
from keepstep.storage.leases import held_steps, pin_notes
from keepstep.storage.lock import acquire_lock
from keepstep.storage.save_log import SaveLog
from tests.rig.folders import make_checkpoint


def test_committed_ones_are_found_and_others_are_not(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 20)
    (make_checkpoint(tmp_path, 10) / ".scored").touch()
    (make_checkpoint(tmp_path, 30) / layout.MANIFEST).unlink()
    os.truncate(make_checkpoint(tmp_path, 40) / "__0_0.distcp", 5)
    (tmp_path / ".save-50.tmp-1").mkdir()
    found = LocalPlace(tmp_path).checkpoints()
    assert [(one.step, one.name, one.marked) for one in found] == [(10, "save-10", True), (20, "save-20", False)]
    assert found[0].digest != found[1].digest
    assert found[0].size > 40_000


def test_a_folder_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    place = place_for(tmp_path / "later")
    assert isinstance(place, LocalPlace)
    assert (place.checkpoints(), place.is_finished()) == ((), False)
    (tmp_path / "file").touch()
    with pytest.raises(CouldNotLookError, match="no folder"):
        place_for(tmp_path / "file")


def test_what_is_read_is_not_deleted(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 10)
    place = LocalPlace(tmp_path)
    (one,) = place.checkpoints()
    with place.reading(one) as path:
        assert path == tmp_path / "save-10"
        assert not delete_checkpoint(tmp_path, 10, 1)
    assert delete_checkpoint(tmp_path, 10, 1)
    with pytest.raises(CheckpointNotFoundError, match="gone"), place.reading(one):
        pass


def test_another_checkpoint_of_the_same_name_is_another_one(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 10)
    (one,) = LocalPlace(tmp_path).checkpoints()
    delete_checkpoint(tmp_path, 10, 1)
    make_checkpoint(tmp_path, 10, attempt=2)
    with pytest.raises(CheckpointNotFoundError, match="another"), LocalPlace(tmp_path).reading(one):
        pass


def test_what_waits_is_held_until_it_is_not_wanted_any_more(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        make_checkpoint(tmp_path, step)
    place = LocalPlace(tmp_path)
    ten, twenty, thirty = place.checkpoints()
    place.hold([ten, twenty])
    assert held_steps(tmp_path) == {10, 20}
    place.hold([twenty, thirty])
    assert held_steps(tmp_path) == {20, 30}
    place.hold([])
    assert held_steps(tmp_path) == frozenset()


def test_a_run_ends_with_the_line_that_says_so(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 10)
    place, log, work = LocalPlace(tmp_path), SaveLog(tmp_path), {"steps": 0, "steps_seconds": 0.0}
    log.started(0, 1, 1.0, 1)
    log.ended(10, 1, "stopped", work)
    assert not place.is_finished()
    log.started(10, 2, 1.0, 1)
    log.ended(17, 2, "finished", work)  # a loop of one's own that knows no last step
    assert place.is_finished()
    log.started(17, 3, 1.0, 1)
    assert not place.is_finished()


def test_the_lock_of_a_machine_that_went_away_does_not_count_for_ever(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 10)
    write_exit(tmp_path, "finished", 0)
    lock = tmp_path / ".keepstep" / "lock-1"
    lock.write_text('{"host": "far", "pid": 1, "boot": "b", "namespace": "n", "started": "1"}')
    place = LocalPlace(tmp_path)
    assert not place.is_finished()
    os.utime(lock, (1e9, 1e9))
    assert place.is_finished()


def test_what_a_folder_is_shows_when_its_first_checkpoint_comes(tmp_path: Path) -> None:
    place = place_for(tmp_path)
    assert place.checkpoints() == ()
    VerifiedCheckpointIO().save_checkpoint({"global_step": 3, "state_dict": {}}, tmp_path / "a.ckpt")
    assert [one.name for one in place.checkpoints()] == ["a.ckpt"]


def test_one_that_was_looked_at_is_not_read_again_and_its_successor_is(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 10)
    place = LocalPlace(tmp_path)
    (first,) = place.checkpoints()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "inspect", lambda *_: pytest.fail("it was read again"))
        assert place.checkpoints() == (first,)
        (tmp_path / "save-10" / ".scored").touch()
        assert place.checkpoints()[0].marked
    delete_checkpoint(tmp_path, 10, 1)
    make_checkpoint(tmp_path, 10, attempt=2)
    assert place.checkpoints()[0].digest != first.digest


def test_a_folder_that_cannot_be_written_is_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    VerifiedCheckpointIO().save_checkpoint({"global_step": 3, "state_dict": {}}, tmp_path / "a.ckpt")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(places, "Lease", refuse)
    place = place_for(tmp_path)
    (one,) = place.checkpoints()
    with place.reading(one) as path:
        assert path.name == "a.ckpt"


@pytest.mark.parametrize("how", ["record", "note", "trainer"])
def test_a_run_is_finished_when_nobody_is_at_work_and_it_says_so(tmp_path: Path, how: str) -> None:
    folder = make_checkpoint(tmp_path, 10)
    place = LocalPlace(tmp_path)
    assert not place.is_finished()
    if how == "record":
        (folder / "run.json").write_text('{"step": 10, "total_steps": 10}')
    elif how == "note":
        write_exit(tmp_path, "finished", 0)
    else:
        folder.rename(tmp_path / "checkpoint-10")
        (tmp_path / "checkpoint-10" / "trainer_state.json").write_text('{"global_step": 10, "max_steps": 10}')
    # A manifest does not hold what was changed here by hand; sizes do.
    if how == "record":
        _seal_anew(folder)
    assert place.is_finished()
    lock = acquire_lock(tmp_path)
    try:
        assert not place.is_finished()
    finally:
        lock.release()
    make_checkpoint(tmp_path, 20) if how != "trainer" else None
    assert place.is_finished() == (how != "record")


def _seal_anew(folder: Path) -> None:
    from keepstep.plan.manifest import FileRecord, Manifest, to_text
    from keepstep.storage.digest import digest_of_bytes

    files = {
        path.name: FileRecord(path.stat().st_size, digest_of_bytes(path.read_bytes()))
        for path in folder.iterdir()
        if path.name != layout.MANIFEST
    }
    (folder / layout.MANIFEST).write_text(to_text(Manifest(10, 1, 1, ("model",), files), digest_of_bytes))


def test_checkpoints_of_lightning_are_found_by_their_records_and_outlive_their_removal_while_read(
    tmp_path: Path,
) -> None:
    io = VerifiedCheckpointIO()
    content = {"state_dict": {"w": torch.zeros(10)}, "optimizer_states": []}
    for step in (3, 6):
        io.save_checkpoint({"global_step": step, **content}, tmp_path / f"epoch=0-step={step}.ckpt")
    (tmp_path / "foreign.ckpt").write_bytes(b"x")
    place = place_for(tmp_path)
    assert isinstance(place, LocalPlace)
    three, six = place.checkpoints()
    assert (three.step, three.name, six.step) == (3, "epoch=0-step=3.ckpt", 6)
    with place.reading(three) as path:
        io.remove_checkpoint(path)
        assert path.exists()
        io.save_checkpoint({"global_step": 9, **content}, tmp_path / "epoch=0-step=9.ckpt")
        assert path.exists()
    io.save_checkpoint({"global_step": 12, **content}, tmp_path / "epoch=0-step=12.ckpt")
    assert not path.exists()
    assert [one.step for one in place.checkpoints()] == [6, 9, 12]
    with pytest.raises(CheckpointNotFoundError, match="gone"), place.reading(three):
        pass


def test_the_best_of_lightning_is_told_from_others_of_its_step(tmp_path: Path) -> None:
    io = VerifiedCheckpointIO()
    values = {"epoch=0-step=3.ckpt": 0.5, "epoch=0-step=6.ckpt": 0.1, "epoch=0-step=6-v1.ckpt": 0.9}
    for name in values:
        step = 3 if "=3" in name else 6
        content = {"global_step": step, "state_dict": {"w": torch.full((2,), values[name])}, "optimizer_states": []}
        io.save_checkpoint(content, tmp_path / name)
    once = WatchOptions(until="once")
    watch(tmp_path, lambda path: {"accuracy": values[path.name]}, options=once)
    for mode, name in (("max", "epoch=0-step=6-v1.ckpt"), ("min", "epoch=0-step=6.ckpt")):
        best = find_best(tmp_path, "accuracy", mode)
        assert (best.choice.chosen, best.path) == (6, str(tmp_path / name))
        assert [row.standing.value for row in best.choice.rows].count("gone") == 0
        assert len(best.choice.rows) == 3


def test_a_pin_of_lightnings_holds_all_of_its_step(tmp_path: Path) -> None:
    io = VerifiedCheckpointIO()
    for name, step in (("a.ckpt", 3), ("b.ckpt", 6), ("last.ckpt", 6)):
        io.save_checkpoint({"global_step": step, "state_dict": {}, "optimizer_states": []}, tmp_path / name)
    watch(tmp_path, lambda path: {"accuracy": float(path.name == "b.ckpt")}, options=WatchOptions(until="once"))
    pin_best(find_best(tmp_path, "accuracy", "max"))
    assert pin_notes(tmp_path) == {6: "best by task/accuracy = 1"}
    pin_checkpoint(tmp_path / "last.ckpt", "sent")
    pin_best(find_best(tmp_path, "accuracy", "max"))
    assert pin_notes(tmp_path) == {6: "sent"}
    for name in ("a.ckpt", "b.ckpt", "last.ckpt"):
        io.remove_checkpoint(tmp_path / name)
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["b.ckpt", "last.ckpt"]
    assert unpin_checkpoint(tmp_path / "b.ckpt").changed
    with pytest.raises(CheckpointNotFoundError):
        pin_checkpoint(tmp_path / "a.ckpt")


def test_one_that_was_saved_anew_under_its_name_is_wanted_again(tmp_path: Path) -> None:
    io = VerifiedCheckpointIO()
    content = {"state_dict": {}, "optimizer_states": []}
    io.save_checkpoint({"global_step": 3, **content}, tmp_path / "last.ckpt")
    (one,) = (place := LocalPlace(tmp_path)).checkpoints()
    with place.reading(one) as path:
        io.remove_checkpoint(path)
    io.save_checkpoint({"global_step": 6, **content}, tmp_path / "last.ckpt")
    io.save_checkpoint({"global_step": 9, **content}, tmp_path / "other.ckpt")
    assert [one.name for one in place.checkpoints()] == ["last.ckpt", "other.ckpt"]


def test_a_mirror(tmp_path: Path) -> None:
    """A folder stands for a store; `test_watch` asks one over the network."""
    make_checkpoint(tmp_path / "there", 10)
    (make_checkpoint(tmp_path / "there", 20) / ".scored").touch()
    place = MirrorPlace(parse_address(f"file://{tmp_path / 'there'}"), tmp_path)
    ten, twenty = place.checkpoints()
    assert (ten.marked, twenty.marked, place.is_finished()) == (False, True, False)
    with place.reading(ten) as path:
        assert path.name == "save-10"
        assert (path / layout.MANIFEST).is_file()
        assert tmp_path / "there" not in path.parents
    assert not path.exists()
    assert sorted(os.listdir(tmp_path)) == ["there"]
