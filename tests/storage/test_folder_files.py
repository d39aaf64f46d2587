"""Files that somebody else has written: which belong to a checkpoint, and what their digests are."""

from pathlib import Path

import pytest

from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.folder_files import digest_and_sync, files_below, folders_below


def test_files_in_folders_too(tmp_path: Path) -> None:
    (tmp_path / "inner" / "empty").mkdir(parents=True)
    (tmp_path / "b").write_bytes(b"12345")
    (tmp_path / "inner" / "a").write_bytes(b"1" * 40_000)
    assert files_below(tmp_path) == [("b", 5), ("inner/a", 40_000)]
    assert folders_below(tmp_path) == [tmp_path / "inner", tmp_path / "inner" / "empty"]
    told: list[int] = []
    records = digest_and_sync(tmp_path, ["b", "inner/a"], told.append)
    assert sum(told) == 40_005
    assert records["inner/a"].digest == digest_of_bytes(b"1" * 40_000)


def test_names_of_keepstep_are_refused_or_left_out(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match=r"run\.json: this name is keepstep's"):
        files_below(tmp_path)
    assert files_below(tmp_path, {"run.json"}) == []


def test_a_link_belongs_to_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="only plain files can"):
        files_below(tmp_path)
