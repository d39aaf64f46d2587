import os
from pathlib import Path

import numpy as np
import pytest

from keepstep.storage import file_index
from keepstep.storage.file_index import Arrays, index_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(file_index, "_SETTLED_NS", -(10**18))
    file_index._forget_unused.cache_clear()
    return tmp_path / "cache" / "keepstep" / "indexes"


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(bytes(100_000))
    return path


class Builder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, path: str) -> Arrays:
        self.calls += 1
        return {"a": np.arange(5), "b": np.arange(os.path.getsize(path) * 2).reshape(2, -1)}


def index(path: Path, build: Builder, kind: str = "k") -> list[int]:
    found = index_of(str(path), kind, ("a", "b"), build)
    assert found.arrays["a"].tolist() == [0, 1, 2, 3, 4]
    return list(found.arrays["b"].shape)


def test_it_is_made_once_for_each_content(large: Path) -> None:
    build = Builder()
    assert [index(large, build) for _ in range(3)] == [[2, 100_000]] * 3
    assert build.calls == 1
    index(large, build, "another kind")
    assert build.calls == 2
    large.write_bytes(bytes(100_001))
    assert index(large, build) == [2, 100_001]
    assert build.calls == 3


def test_large_arrays_are_mapped_and_not_read(large: Path) -> None:
    found = index_of(str(large), "k", ("a", "b"), Builder())
    assert isinstance(found.arrays["b"], np.memmap)
    assert not isinstance(found.arrays["a"], np.memmap)
    assert found.is_at_hand


def test_the_index_of_a_small_file_is_not_written(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "small").write_bytes(b"ab")
    build = Builder()
    assert index(tmp_path / "small", build) == [2, 2]
    assert not cache.exists()


def test_a_file_that_was_written_just_now_is_not_remembered(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_index, "_SETTLED_NS", 10**18)
    build = Builder()
    assert not index_of(str(large), "k", ("a", "b"), build).is_at_hand
    index(large, build)
    assert build.calls == 2


@pytest.mark.parametrize("size", [0, 60, 1000])
def test_what_a_full_disk_left_in_the_cache_is_made_again(large: Path, cache: Path, size: int) -> None:
    build = Builder()
    index(large, build)
    (stored,) = cache.glob("*.b.npy")
    os.truncate(stored, size)
    index(large, build)
    index(large, build)
    assert build.calls == 2


def test_a_file_that_changes_while_it_is_read_is_no_index(large: Path) -> None:
    def build(path: str) -> Arrays:
        os.truncate(path, 70_000)
        return {"a": np.arange(5)}

    with pytest.raises(OSError, match="changed while it was read"):
        index_of(str(large), "k", ("a",), build)


def test_what_nobody_used_for_long_goes(large: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    for name, days in (("old.a.npy", 91), ("new.a.npy", 80)):
        (cache / name).touch()
        then = (cache / name).stat().st_mtime - days * 86400
        os.utime(cache / name, (then, then))
    index(large, Builder())
    assert not (cache / "old.a.npy").exists()
    assert (cache / "new.a.npy").exists()
