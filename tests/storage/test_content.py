"""Digests of files are remembered as long as the file is the same, and no longer."""

import os
import sqlite3
import time
from pathlib import Path

import pytest
import xxhash

from keepstep.storage.content import FileDigests, cache_file


def old(path: Path, content: bytes) -> Path:
    """A file that was written long enough ago to be remembered: its change time cannot be set, so the clock is."""
    path.write_bytes(content)
    return path


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns
    monkeypatch.setattr("keepstep.storage.content.time.time_ns", lambda: now() + 60 * 10**9)


def test_the_digest_is_that_of_all_bytes(tmp_path: Path) -> None:
    content = os.urandom(5 * 1024 * 1024 + 3)
    with FileDigests() as files:
        assert files.of(old(tmp_path / "a", content)) == xxhash.xxh3_128_hexdigest(content)
        assert files.bytes_read == len(content)


@pytest.mark.usefixtures("later")
def test_what_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    cache, path = tmp_path / "c" / "digests.sqlite", old(tmp_path / "a", b"x" * 1000)
    with FileDigests(cache) as files:
        first = files.of(path)
    with FileDigests(cache) as files:
        assert (files.of(path), files.bytes_read) == (first, 0)
    with FileDigests(cache, rehash=True) as files:
        assert (files.of(path), files.bytes_read) == (first, 1000)


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("keep_times", [True, False])
def test_a_change_is_seen_also_when_size_and_mtime_are_put_back(tmp_path: Path, keep_times: bool) -> None:
    cache, path = tmp_path / "digests.sqlite", old(tmp_path / "a", b"x" * 1000)
    before = path.stat()
    with FileDigests(cache) as files:
        first = files.of(path)
    time.sleep(0.02)
    path.write_bytes(b"y" * 1000)
    if keep_times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with FileDigests(cache) as files:
        assert files.of(path) != first


def test_a_file_that_was_written_just_now_is_not_remembered(tmp_path: Path) -> None:
    cache, path = tmp_path / "digests.sqlite", old(tmp_path / "a", b"x" * 1000)
    for _ in range(2):
        with FileDigests(cache) as files:
            files.of(path)
            assert files.bytes_read == 1000


@pytest.mark.usefixtures("later")
def test_a_cache_that_cannot_be_used_costs_time_and_nothing_else(tmp_path: Path) -> None:
    path = old(tmp_path / "a", b"x" * 1000)
    (tmp_path / "garbage").write_bytes(b"no database" * 100)
    (tmp_path / "file").write_bytes(b"")
    for cache in (tmp_path / "garbage", tmp_path / "file" / "inside"):
        with FileDigests(cache) as files:
            assert files.of(path) == xxhash.xxh3_128_hexdigest(b"x" * 1000)
    locked = tmp_path / "locked.sqlite"
    with FileDigests(locked) as files:
        files.of(path)
    other = sqlite3.connect(locked, isolation_level=None)
    other.execute("DELETE FROM digests")
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("keepstep.storage.content._BUSY_SECONDS", 0.05)
            with FileDigests(locked) as files:
                assert files.of(path) == xxhash.xxh3_128_hexdigest(b"x" * 1000)
    finally:
        other.close()


def test_what_is_no_regular_file_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with FileDigests() as files:
        for name in ("fifo", ".", "nowhere"):
            with pytest.raises(OSError, match=str(tmp_path)):
                files.of(tmp_path / name)


def test_the_cache_lies_where_caches_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_file() == Path("/somewhere/keepstep/digests.sqlite")
