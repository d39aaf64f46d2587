import errno
import os
from pathlib import Path

import pytest

from keepstep.storage import local
from keepstep.storage.digest import block_digests
from keepstep.storage.local import DurableFile, exchange, make_folders, publish, remove_tree, replace_text


def test_a_durable_file_holds_what_was_written_and_knows_its_digests(tmp_path: Path) -> None:
    parts = [b"abc", b"x" * (9 * 1024 * 1024), b"", b"end"]
    with DurableFile(tmp_path / "f") as file:
        offsets = [file.write(part) for part in parts]
    data = b"".join(parts)
    assert (tmp_path / "f").read_bytes() == data
    assert offsets == [0, 3, 3 + len(parts[1]), 3 + len(parts[1])]
    assert (file.size, file.digests) == (len(data), block_digests(data))


def test_a_name_that_is_taken_is_never_written_into(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("mine")
    with pytest.raises(FileExistsError), DurableFile(tmp_path / "f") as file:
        file.write(b"yours")
    assert (tmp_path / "f").read_text() == "mine"


def test_every_byte_is_synced_before_close_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(local.os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_size), fsync(fd)))
    with DurableFile(tmp_path / "f") as file:
        file.write(b"12345")
    assert synced == [5]


def test_replacing_keeps_the_old_text_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "f"
    replace_text(target, "old")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(local.os, "write", full)
    with pytest.raises(OSError, match="No space"):
        replace_text(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["f"]


def folder(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "content").write_text(text)
    return path


def test_publishing_gives_the_final_name(tmp_path: Path) -> None:
    publish(folder(tmp_path / "tmp", "new"), tmp_path / "final")
    assert (tmp_path / "final" / "content").read_text() == "new"
    assert not (tmp_path / "tmp").exists()


def test_two_folders_change_names_in_one_step(tmp_path: Path) -> None:
    folder(tmp_path / "a", "of a")
    folder(tmp_path / "b", "of b")
    assert exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "content").read_text() == "of b"
    assert (tmp_path / "b" / "content").read_text() == "of a"
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "nothing")


def test_where_that_cannot_be_done_nothing_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local.ctypes, "CDLL", lambda *_, **__: object())
    folder(tmp_path / "a", "of a")
    folder(tmp_path / "b", "of b")
    assert not exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "content").read_text() == "of a"


def test_folders_are_made_with_their_parents_and_may_exist(tmp_path: Path) -> None:
    make_folders(tmp_path / "a" / "b")
    make_folders(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        make_folders(tmp_path / "file" / "b")


def test_removing_what_is_gone_is_fine(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nothing")
    remove_tree(folder(tmp_path / "x", ""))
    assert os.listdir(tmp_path) == []


def test_a_file_system_that_renames_no_folders_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source), None, str(target))

    (tmp_path / "save").mkdir()
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="cannot rename a folder that is not empty") as caught:
        publish(tmp_path / "save", tmp_path / "save-5")
    assert caught.value.errno == errno.EXDEV


def test_a_folder_that_is_not_yet_empty_is_deleted_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a drive that keeps listings: the first look names what has gone, the second one lacks what has come."""
    folder, remove, answers = tmp_path / "folder", local.shutil.rmtree, [errno.ENOENT, errno.ENOTEMPTY]
    folder.mkdir()

    def late(path: Path) -> None:
        if answers:
            code = answers.pop(0)
            raise OSError(code, os.strerror(code), str(path))
        remove(path)

    monkeypatch.setattr(local.shutil, "rmtree", late)
    remove_tree(folder)
    assert (answers, os.listdir(tmp_path)) == ([], [])
    remove_tree(folder)


def test_a_folder_that_cannot_be_deleted_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "no", str(path))

    monkeypatch.setattr(local.shutil, "rmtree", refuse)
    with pytest.raises(PermissionError):
        remove_tree(tmp_path)
