"""A file is written as its image is, with the right digests, wherever it lies."""

import errno
import fcntl
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keepstep.storage import writer as writer_module
from keepstep.storage.buffers import PAGE, PageBuffer
from keepstep.storage.digest import block_digests
from keepstep.storage.writer import WINDOW, Writer


class Bytes:
    """An image that is read, or that lies in one piece."""

    def __init__(self, data: bytes, *, in_place: bool = False) -> None:
        self.size = len(data)
        self._data, self._buffer = data, PageBuffer(len(data)) if in_place else None
        if self._buffer is not None:
            self._buffer.view[: len(data)] = data

    def read(self, begin: int, target: memoryview) -> None:
        target[:] = self._data[begin : begin + len(target)]

    def view(self, begin: int, end: int) -> memoryview | None:
        return self._buffer.view[begin:end] if self._buffer is not None else None


def content(size: int) -> bytes:
    return (os.urandom(1 << 16) * (size // (1 << 16) + 1))[:size]


@pytest.mark.parametrize("size", [0, 1, PAGE, 100_001, WINDOW, WINDOW + PAGE, 3 * WINDOW + 5])
@pytest.mark.parametrize("in_place", [False, True])
def test_the_file_is_the_image(tmp_path: Path, size: int, in_place: bool) -> None:
    data = content(size)
    done = Writer(threads=2).write(tmp_path / "f", Bytes(data, in_place=in_place))
    assert (tmp_path / "f").read_bytes() == data
    assert (done.size, done.digests) == (size, block_digests(data))


def test_a_name_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("mine")
    with pytest.raises(FileExistsError):
        Writer().write(tmp_path / "f", Bytes(b"yours"))
    assert (tmp_path / "f").read_text() == "mine"


@pytest.mark.parametrize("fails_at", ["open", "write"])
def test_where_direct_writes_are_refused_the_cache_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    real_open, real_pwrite = os.open, os.pwrite
    refused = []

    def is_direct(descriptor: int) -> bool:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)

    def open_(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if fails_at == "open" and flags & os.O_DIRECT:
            os.close(real_open(path, flags & ~os.O_DIRECT, *rest))  # some make the file before they refuse
            refused.append("open")
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(path, flags, *rest, **named)

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        if is_direct(descriptor):
            refused.append("write")
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_pwrite(descriptor, data, offset)

    data = content(2 * WINDOW)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_)
        patch.setattr(os, "pwrite", pwrite)
        Writer().write(tmp_path / "f", Bytes(data))
    assert (tmp_path / "f").read_bytes() == data
    assert fails_at in refused


def test_threads_that_are_refused_at_one_time_all_go_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_pwrite, real_fcntl = os.pwrite, fcntl.fcntl
    both = threading.Barrier(2, timeout=20)
    one_is_through = threading.Event()

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        if real_fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            if both.wait():  # the other is told of its refusal only when this one is through
                one_is_through.wait(20)
            raise OSError(errno.EINVAL, "Invalid argument")
        done = real_pwrite(descriptor, data, offset)
        one_is_through.set()
        return done

    data = content(2 * WINDOW)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        Writer(threads=2).write(tmp_path / "f", Bytes(data))
    assert (tmp_path / "f").read_bytes() == data
    assert one_is_through.is_set()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={2 * WINDOW}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_on_a_memory_file_system_and_until_it_is_full(small_disk: Path) -> None:
    data = content(WINDOW + 3)
    Writer().write(small_disk / "f", Bytes(data))
    assert (small_disk / "f").read_bytes() == data
    with pytest.raises(OSError, match="No space left"):
        Writer(threads=2).write(small_disk / "g", Bytes(content(2 * WINDOW)))


def test_the_first_error_of_several_threads_is_raised_and_the_others_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def write(self: Any, piece: memoryview, offset: int) -> None:
        written.append(offset)
        if offset == WINDOW:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(writer_module._Target, "write", write)
    with pytest.raises(OSError, match="Input/output"):
        Writer(threads=2).write(tmp_path / "f", Bytes(bytes(20 * WINDOW)))
    assert len(written) < 10
