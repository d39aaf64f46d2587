import os
from pathlib import Path

import pytest

from keepstep.errors import CouldNotLookError
from keepstep.plan.manifest import Manifest
from keepstep.storage import verify
from keepstep.storage.survey import inspect
from keepstep.storage.verify import Damage, verify_files
from tests.rig.folders import make_checkpoint


def check(folder: Path) -> list[Damage]:
    manifest = inspect_manifest(folder)
    return verify_files(folder, manifest, sorted(manifest.files))


def inspect_manifest(folder: Path) -> Manifest:
    manifest = inspect(folder, 10).manifest
    assert manifest is not None
    return manifest


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def test_an_untouched_checkpoint_is_good(tmp_path: Path) -> None:
    assert check(make_checkpoint(tmp_path, 10)) == []


@pytest.mark.parametrize(("position", "tensor"), [(3, "model.first"), (39_999, "model.second")])
def test_a_flipped_byte_is_found_and_its_tensor_named(tmp_path: Path, position: int, tensor: str) -> None:
    folder = make_checkpoint(tmp_path, 10)
    flip(folder / "__0_0.distcp", position)
    (damage,) = check(folder)
    assert damage.file == "__0_0.distcp"
    assert f"1 blocks ({tensor})" in damage.problem


def test_a_flip_in_any_other_file_is_found(tmp_path: Path) -> None:
    for number, name in enumerate(("__0.index", ".metadata", "run.json")):
        folder = make_checkpoint(tmp_path / str(number), 10)
        flip(folder / name, 5)
        assert [damage.file for damage in check(folder)] == [name]


def test_two_damaged_files_are_both_found(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, 10)
    manifest = inspect_manifest(folder)
    os.truncate(folder / "__0_0.distcp", 10)
    (folder / "run.json").unlink()
    damage = verify_files(folder, manifest, sorted(manifest.files))
    assert {d.file: d.problem for d in damage} == {"__0_0.distcp": "10 bytes, not 40000", "run.json": "it is missing"}


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_checkpoint(tmp_path, 10)

    def failing(descriptor: int, offset: int, target: memoryview) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(verify, "read_fully", failing)
    with pytest.raises(CouldNotLookError, match="Input/output error"):
        check(folder)


@pytest.mark.parametrize("name", ["__0_0.distcp", "run.json"])
def test_bytes_that_are_wrong_in_memory_only_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    folder = make_checkpoint(tmp_path, 10)
    manifest, read = inspect_manifest(folder), verify.read_fully

    def spoil(descriptor: int, offset: int, target: memoryview) -> None:
        read(descriptor, offset, target)
        target[0] ^= 1

    monkeypatch.setattr(verify, "read_fully", spoil)
    assert verify_files(folder, manifest, [name]) == []
    assert "right from the disk" in caplog.text
