"""The CheckpointIO for Lightning, and the choice of what to go on from: files, records, damage."""

import json
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="Lightning is not installed: pip install keepstep[lightning]")

from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO

from keepstep.errors import CouldNotLookError, DamagedCheckpointError, SaveError
from keepstep.integrations.lightning import VerifiedCheckpointIO, newest_verified
from keepstep.integrations.lightning import write as write_module
from keepstep.integrations.lightning.packages import part
from keepstep.integrations.lightning.verdict import Judged, judge
from keepstep.plan import layout
from keepstep.storage import named_records as records_module
from keepstep.storage.leases import Lease
from keepstep.testing.faults import cut, flip_bit, swap
from tests.rig import forks
from tests.rig.command import keepstep


def checkpoint(step: int, **parts: Any) -> dict[str, Any]:
    weights = torch.arange(5000, dtype=torch.float32) + step
    return {"global_step": step, "state_dict": {"w": weights}, "optimizer_states": [], **parts}


def save(path: Path, step: int, **parts: Any) -> Path:
    VerifiedCheckpointIO().save_checkpoint(checkpoint(step, **parts), path)
    return path


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_round_trip_and_plain_lightning_reads_it(tmp_path: Path) -> None:
    path = save(tmp_path / "new" / "epoch=0-val loss=0.5.ckpt", 7)
    for io in (VerifiedCheckpointIO(), TorchCheckpointIO()):
        loaded = io.load_checkpoint(path, weights_only=True)
        assert loaded["global_step"] == 7
        assert torch.equal(loaded["state_dict"]["w"], checkpoint(7)["state_dict"]["w"])
    assert isinstance(VerifiedCheckpointIO(), TorchCheckpointIO)
    assert files(path.parent) == [
        f".keepstep/files/{path.name}.1.json",
        f".keepstep/files/{path.name}.1.run.json",
        path.name,
    ]
    verdict = judge(path)
    assert verdict.record is not None
    assert verdict.record.manifest is not None
    assert (verdict.record.manifest.step, verdict.record.manifest.world_size) == (7, 1)
    assert '"torch"' in (path.parent / f".keepstep/files/{path.name}.1.run.json").read_text()


def test_overwriting_and_removing_leave_no_record_behind(tmp_path: Path) -> None:
    path = save(save(tmp_path / "last.ckpt", 1), 2)
    assert files(tmp_path) == [".keepstep/files/last.ckpt.2.json", ".keepstep/files/last.ckpt.2.run.json", "last.ckpt"]
    VerifiedCheckpointIO().remove_checkpoint(path)
    VerifiedCheckpointIO().remove_checkpoint(path)
    assert files(tmp_path) == []
    assert newest_verified(tmp_path) is None


def test_one_that_a_reader_holds_never_loses_its_name(tmp_path: Path) -> None:
    path, lease = save(tmp_path / "a.ckpt", 3), Lease(tmp_path, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: pytest.fail("it was renamed"))
        VerifiedCheckpointIO().remove_checkpoint(path)
    save(tmp_path / "b.ckpt", 6)
    assert path.exists()
    lease.release()
    save(tmp_path / "c.ckpt", 9)
    assert not path.exists()
    assert not [name for name in files(tmp_path) if "a.ckpt" in name]


@pytest.mark.parametrize("harm", ["flip", "cut", "swap", "gone", "record"])
def test_damage_is_found_before_it_is_loaded_and_the_one_before_is_taken(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    older, newer = save(tmp_path / "a.ckpt", 5), save(tmp_path / "b.ckpt", 10)
    assert newest_verified(tmp_path) == newer
    if harm == "flip":
        flip_bit(newer, 9000)
    elif harm == "cut":
        cut(newer, newer.stat().st_size // 2)
    elif harm == "swap":
        swap(older, newer)
    elif harm == "gone":
        newer.unlink()
    else:
        flip_bit(tmp_path / ".keepstep/files/b.ckpt.2.json", 100)
    if harm == "gone":
        assert newest_verified(tmp_path) == older
        with pytest.raises(FileNotFoundError):
            VerifiedCheckpointIO().load_checkpoint(newer)
        return
    with pytest.raises(DamagedCheckpointError, match=r"b\.ckpt is damaged"):
        VerifiedCheckpointIO().load_checkpoint(newer, weights_only=True)
    if harm == "swap":
        with pytest.raises(DamagedCheckpointError, match=r"(a|b)\.ckpt.*(a|b)\.ckpt"):
            newest_verified(tmp_path)
        return
    assert newest_verified(tmp_path) == older
    assert "b.ckpt is damaged and passed over" in caplog.text


def test_steps_count_and_times_do_not(tmp_path: Path) -> None:
    newest = save(tmp_path / "ck.ckpt", 30)
    os.utime(newest, (1, 1))
    save(tmp_path / "last.ckpt", 20)
    assert newest_verified(tmp_path) == newest
    again = save(tmp_path / "ck-v1.ckpt", 30)
    assert newest_verified(str(tmp_path)) == again


def test_an_empty_folder_is_none_and_one_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    assert newest_verified(tmp_path / "none") is None
    assert newest_verified(tmp_path) is None
    (tmp_path / "file").touch()
    with pytest.raises(CouldNotLookError, match="file"):
        newest_verified(tmp_path / "file")
    path = save(tmp_path / "run" / "a.ckpt", 1)
    path.with_name(".keepstep").rename(tmp_path / "away")
    path.with_name(".keepstep").touch()
    with pytest.raises(CouldNotLookError, match="keepstep"):
        newest_verified(path.parent)


def test_foreign_files_are_loaded_with_a_warning_and_not_chosen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    TorchCheckpointIO().save_checkpoint(checkpoint(50), tmp_path / "foreign.ckpt")
    assert VerifiedCheckpointIO().load_checkpoint(tmp_path / "foreign.ckpt")["global_step"] == 50
    assert "no record of keepstep's" in caplog.text
    assert newest_verified(tmp_path) is None
    save(tmp_path / "own.ckpt", 1)
    assert newest_verified(tmp_path) == tmp_path / "own.ckpt"


def test_weights_alone_are_not_gone_on_from(tmp_path: Path) -> None:
    VerifiedCheckpointIO().save_checkpoint({"global_step": 9, "state_dict": {}}, tmp_path / "weights.ckpt")
    assert newest_verified(tmp_path) is None
    path = save(tmp_path / "a.ckpt", 3)
    assert newest_verified(tmp_path) == path


def test_a_link_is_what_it_leads_to(tmp_path: Path) -> None:
    path = save(tmp_path / "a.ckpt", 3)
    (tmp_path / "last.ckpt").symlink_to("a.ckpt")
    assert newest_verified(tmp_path) == path
    assert VerifiedCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")["global_step"] == 3
    flip_bit(path, 9000)
    with pytest.raises(DamagedCheckpointError, match=r"last\.ckpt is damaged"):
        VerifiedCheckpointIO().load_checkpoint(tmp_path / "last.ckpt")
    VerifiedCheckpointIO().remove_checkpoint(tmp_path / "last.ckpt")
    assert path.is_file()


def test_a_full_disk_leaves_the_earlier_file(tmp_path: Path) -> None:
    def on_a_small_disk() -> None:
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
        save(path, 2)

    path = save(tmp_path / "last.ckpt", 1)
    before = files(tmp_path)
    (ended,) = forks.run(on_a_small_disk)
    assert isinstance(ended.error, SaveError)
    assert str(path) in str(ended.error)
    assert "untouched" in str(ended.error)
    assert files(tmp_path) == before
    assert VerifiedCheckpointIO().load_checkpoint(path)["global_step"] == 1


@pytest.mark.parametrize("part_of_save", ["note", "replace", "sync"])
def test_an_error_at_each_part_of_a_save(tmp_path: Path, part_of_save: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "last.ckpt", 1)

    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    target = {"note": (write_module, "_write_text"), "replace": (os, "replace"), "sync": (write_module, "sync_folder")}
    with monkeypatch.context() as patched:
        patched.setattr(*target[part_of_save], refuse)
        with pytest.raises(SaveError, match="No space left"):
            save(path, 2)
    assert VerifiedCheckpointIO().load_checkpoint(path)["global_step"] == 1
    assert len(files(tmp_path)) == 3


def test_what_cannot_be_pickled_is_its_own_error_and_leaves_nothing(tmp_path: Path) -> None:
    path = save(tmp_path / "last.ckpt", 1)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        save(path, 2, hyper_parameters={"f": lambda: None})
    assert newest_verified(tmp_path) == path
    assert len(files(tmp_path)) == 3


def test_a_dead_save_is_cleared_away_and_a_living_one_is_not(tmp_path: Path) -> None:
    dead = records_module.temporary_path(tmp_path / "a.ckpt", 4)
    dead.write_bytes(b"x")
    own = tmp_path / layout.temporary_name(200, 3)
    own.mkdir()
    with write_module.begun(tmp_path / "b.ckpt") as living:
        assert not dead.exists()
        living.scratch.write_bytes(b"y")
        living.hold()
        save(tmp_path / "c.ckpt", 1)
        assert living.scratch.exists()
    assert own.exists()
    assert newest_verified(tmp_path) == tmp_path / "c.ckpt"


def test_a_file_that_is_saved_anew_while_it_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "last.ckpt", 1)
    look, calls = records_module.records_of, []

    def overtaken(path: Path) -> Any:
        found = look(path)
        if not calls:
            calls.append(save(path, 2))
        return found

    monkeypatch.setattr("keepstep.integrations.lightning.verdict.records_of", overtaken)
    verdict = judge(path)
    assert verdict.judged is Judged.GOOD
    assert verdict.record is not None
    assert verdict.record.order[0] == 2


def test_nothing_is_removed_after_an_asynchronous_save_that_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, io = save(tmp_path / "a.ckpt", 1), VerifiedCheckpointIO()
    io.writer = AsyncCheckpointIO(io)
    (tmp_path / "file").touch()
    io.writer.save_checkpoint(checkpoint(2), tmp_path / "file" / "b.ckpt")
    io.remove_checkpoint(path)
    with pytest.raises(SaveError):
        io.writer.teardown()
    assert newest_verified(tmp_path) == path
    assert "a.ckpt is kept" in caplog.text


def test_other_addresses_are_left_to_lightning(caplog: pytest.LogCaptureFixture) -> None:
    io = VerifiedCheckpointIO()
    io.save_checkpoint(checkpoint(4), "memory://run/a.ckpt")
    assert io.load_checkpoint("memory://run/a.ckpt", weights_only=True)["global_step"] == 4
    io.remove_checkpoint("memory://run/a.ckpt")
    assert "unverified" in caplog.text


def test_it_survives_pickling_and_refuses_storage_options(tmp_path: Path) -> None:
    io = pickle.loads(pickle.dumps(VerifiedCheckpointIO()))
    assert type(io) is VerifiedCheckpointIO
    with pytest.raises(TypeError, match="storage_options"):
        io.save_checkpoint(checkpoint(1), tmp_path / "a.ckpt", storage_options={})


def test_without_lightning_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match=r"pip install keepstep\[lightning\]"):
        part("no_lightning", "plugins.io")


def test_enabling_imports_neither_torch_nor_lightning() -> None:
    code = (
        "import sys; from keepstep.integrations import lightning; lightning.enable(); "
        "assert not {'torch', 'lightning', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(autouse=True)
def _all_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "keepstep")


def test_advise_knows_when_which_step_was_saved(tmp_path: Path) -> None:
    for number in range(1, 4):
        save(tmp_path / f"step={number}.ckpt", number * 40)
        record = tmp_path / f".keepstep/files/step={number}.ckpt.{number}.run.json"
        facts = json.loads(record.read_text())
        record.write_text(json.dumps({**facts, "created_at": f"2026-01-01T00:0{number}:00Z"}))
    done = keepstep("advise", str(tmp_path), "--save-seconds", "2", "--mtbf", "6h", "--json")
    found = json.loads(done.stdout)
    assert (found["costs"]["step_seconds"], found["present_steps"]) == (1.5, 40)
