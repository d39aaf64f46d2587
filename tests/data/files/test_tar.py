import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest

from keepstep.data.files import tar
from keepstep.data.loader import GlobalBatchLoader
from keepstep.errors import DataError
from keepstep.plan.batching import divide
from tests.rig import forks


def write(path: Path, members: dict[str, bytes], mode: Any = "w", form: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode, format=form) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


LONG = "d" * 120 + "/" + "ü" * 130


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "in" / "0.tar", {"a/1.jpg": b"one", "a/1.cls": b"1", "a/2.jpg": b"", "a/2.seg.png": b"seg"})
    write(tmp_path / "in" / "1.tar", {})
    (tmp_path / "in" / "2.tar").touch()
    for name, form in (("3.tar", tarfile.GNU_FORMAT), ("4.tar", tarfile.PAX_FORMAT)):
        write(tmp_path / "in" / name, {f"{LONG}.txt": b"long"}, form=form)
    return tmp_path / "in"


def test_neighbours_with_one_key_are_a_sample(folder: Path) -> None:
    data = tar(folder)
    assert [data[index] for index in range(len(data))] == [
        {"__key__": "a/1", "jpg": b"one", "cls": b"1"},
        {"__key__": "a/2", "jpg": b"", "seg.png": b"seg"},
        {"__key__": LONG, "txt": b"long"},
        {"__key__": LONG, "txt": b"long"},
    ]
    assert [data.id_of(index) for index in range(3)] == ["0.tar#a/1", "0.tar#a/2", f"3.tar#{LONG}"]
    assert [data.length_of(index) for index in range(3)] == [4, 3, 4]


def test_it_survives_pickling_forks_and_workers(folder: Path) -> None:
    data = tar(folder)
    keys = [data[index]["__key__"] for index in range(4)]
    copy = pickle.loads(pickle.dumps(data))
    assert forks.values(lambda: [copy[index]["__key__"] for index in range(4)], 2) == [keys] * 2
    loader = GlobalBatchLoader(data, divide(2, 1, 1), 0, seed=0, shuffle=False, epochs=1, num_workers=2)
    assert [sample["__key__"] for step in loader for micro in step for sample in micro.data] == keys


def cut(size: int) -> Any:
    def make(path: Path) -> None:
        write(path, {"a.txt": bytes(3000), "b.txt": bytes(3000)})
        path.write_bytes(path.read_bytes()[:size])

    return make


def scribbled(path: Path) -> None:
    write(path, {"a.txt": bytes(3000), "b.txt": bytes(3000)})
    content = bytearray(path.read_bytes())
    content[3584 + 10] ^= 1  # in the second header
    path.write_bytes(content)


def linked(path: Path) -> Path:
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("a.txt")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: write(path, {"a.txt": b""}, "w:gz"), r"x\.tar: is compressed \(gzip\).*plain .tar"),
        (cut(4000), r"x\.tar: has no end mark at byte 3584"),
        (cut(3584), r"x\.tar: has no end mark at byte 3584"),
        (cut(5000), r"x\.tar: .*(ends before|unexpected end)"),
        (scribbled, r"x\.tar: has no end mark at byte 3584"),
        (linked, r"x\.tar: a\.txt is a link"),
        (lambda path: path.write_bytes(b"no archive" * 100), r"x\.tar: no plain tar file"),
    ],
    ids=[
        "compressed",
        "cut in a header",
        "cut behind a member",
        "cut in a member",
        "a damaged header",
        "a link",
        "no archive",
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path / "x.tar")
    with pytest.raises(DataError, match=message):
        len(tar(tmp_path / "x.tar"))


def test_a_field_that_a_sample_has_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", {"a.txt": b"1"})
    with tarfile.open(path, "a") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    with pytest.raises(DataError, match=r"the sample a has the field 'txt' twice"):
        len(tar(path))
