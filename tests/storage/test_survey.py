import os
import random
import shutil
from pathlib import Path

import pytest

from keepstep.errors import CouldNotLookError
from keepstep.plan.resume import Condition
from keepstep.storage import survey as survey_module
from keepstep.storage.survey import survey
from tests.rig.folders import make_checkpoint


def steps(folder: Path) -> list[int]:
    return [c.found.step for c in survey(folder).complete]


def test_odd_content_is_foreign_and_changes_nothing(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 5)
    make_checkpoint(tmp_path, 10)
    odd = ["save-10.tmp", "save-abc", "save-007", "save-10x", "other-run", "SAVE-12"]
    for name in odd:
        shutil.copytree(tmp_path / "save-5", tmp_path / name)
    (tmp_path / "save-20").symlink_to(tmp_path / "nowhere")
    (tmp_path / "save-25").symlink_to(tmp_path / "save-5")
    (tmp_path / "save-30").write_text("a file")
    (tmp_path / "notes.txt").write_text("mine")
    found = survey(tmp_path)
    assert steps(tmp_path) == [5, 10]
    assert set(found.foreign) == {*odd, "save-20", "save-25", "save-30", "notes.txt"}
    assert found.leftovers == ()


def test_leftovers_of_saves_and_deletions_are_told_apart(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 5, attempt=3)
    (tmp_path / ".save-10.tmp-4").mkdir()
    (tmp_path / ".save-1.del-2").mkdir()
    (tmp_path / ".keepstep").mkdir()
    found = survey(tmp_path)
    assert set(found.leftovers) == {".save-10.tmp-4", ".save-1.del-2"}
    assert found.foreign == ()
    assert found.last_attempt == 4


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert survey(tmp_path / "new").checkpoints == ()
    assert survey(tmp_path / "new").last_attempt == 0


def test_what_cannot_be_listed_is_never_taken_for_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for path in ("file", "dangling"):
        with pytest.raises(CouldNotLookError, match=path):
            survey(tmp_path / path)

    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(CouldNotLookError, match="Permission denied"):
        survey(tmp_path)


@pytest.mark.parametrize("name", ["__0_0.distcp", "__0.index", ".metadata", "run.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["empty", "cut", "grown", "gone", "link"])
def test_each_damaged_file_makes_it_not_complete(tmp_path: Path, name: str, damage: str) -> None:
    make_checkpoint(tmp_path, 5)
    file = make_checkpoint(tmp_path, 10) / name
    match damage:
        case "empty":
            os.truncate(file, 0)
        case "cut":
            os.truncate(file, file.stat().st_size - 1)
        case "grown":
            file.write_bytes(file.read_bytes() + b"}")
        case "gone":
            file.unlink()
        case "link":
            file.rename(tmp_path / "elsewhere")
            file.symlink_to(tmp_path / "elsewhere")
    assert steps(tmp_path) == [5]
    bad = survey(tmp_path).checkpoints[-1].found
    assert bad.step == 10
    assert bad.problem


def test_a_copy_under_way_is_not_complete_in_any_order(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "from", 10)
    names = sorted(os.listdir(source))
    for seed in range(20):
        target = tmp_path / f"to-{seed}" / "save-10"
        target.mkdir(parents=True)
        order = random.Random(seed).sample(names, len(names))
        for position, name in enumerate(order):
            assert steps(target.parent) == [], f"taken for complete with {order[:position]}"
            shutil.copy(source / name, target / name)
        assert steps(target.parent) == [10]


def test_a_renamed_checkpoint_is_not_of_the_step_it_says(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, 10).rename(tmp_path / "save-20")
    (found,) = survey(tmp_path).checkpoints
    assert found.found.condition is Condition.DAMAGED
    assert "step 10" in found.found.problem


def test_foreign_files_inside_a_checkpoint_harm_nothing(tmp_path: Path) -> None:
    (make_checkpoint(tmp_path, 10) / ".scored").write_text("0.9")
    assert steps(tmp_path) == [10]


def test_checkpoints_are_listed_by_number(tmp_path: Path) -> None:
    for step in (100, 9, 10):
        make_checkpoint(tmp_path, step)
    assert steps(tmp_path) == [9, 10, 100]


def test_a_manifest_that_is_wrong_in_memory_only_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_checkpoint(tmp_path, 10)
    read = survey_module.read_plain
    monkeypatch.setattr(survey_module, "read_plain", lambda path, limit: read(path, limit).replace(b"10", b"11"))
    assert steps(tmp_path) == [10]
    assert "right from the disk" in caplog.text
