import errno
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from keepstep.config.address import parse_address
from keepstep.storage.stores.meter import Meter
from keepstep.storage.stores.opening import open_store
from keepstep.storage.stores.web import WebStore
from tests.rig.web_server import WebManners, web_server
from tests.storage.stores.conformance import file_of, upload_of

_SECRET = "X-Signature=abc%2Fdef"


@pytest.fixture
def manners() -> WebManners:
    return WebManners()


@pytest.fixture
def web(tmp_path: Path, manners: WebManners) -> Iterator[str]:
    """The address of a server, without a path."""
    for name, data in {"run/save-5/a": b"abcdef", "run/save-5/a b%c": b"odd", "run/save-5/empty": b""}.items():
        file_of(tmp_path, name, data)
    with web_server(tmp_path, manners) as address:
        yield address


@pytest.fixture
def store(web: str) -> WebStore:
    found = open_store(parse_address(f"{web}/run/save-5?{_SECRET}"))
    assert isinstance(found, WebStore)
    return found


def part(store: WebStore, name: str, offset: int, length: int) -> bytes:
    target = bytearray(length)
    store.read_into(name, offset, memoryview(target))
    return bytes(target)


def test_files_and_parts_of_them_are_read(store: WebStore) -> None:
    assert store.read("a", 6) == b"abcdef"
    assert store.read("a b%c", 10) == b"odd"
    assert store.read("empty", 10) == b""
    assert part(store, "a", 0, 6) == b"abcdef"
    assert part(store, "a", 2, 3) == b"cde"
    assert part(store, "a", 2, 0) == b""


def test_the_query_goes_with_every_file_and_into_no_text(store: WebStore, manners: WebManners, web: str) -> None:
    store.read("a", 6)
    part(store, "a", 1, 2)
    assert manners.paths == [f"/run/save-5/a?{_SECRET}"] * 2
    assert store.address == f"{web}/run/save-5"
    for answer in (401, 403, 404, 418, 302):
        manners.answers = [answer]
        with pytest.raises(OSError) as caught:
            store.read("a", 6)
        assert "Signature" not in repr(caught.value)
        assert "abc" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_what_is_not_there_is_told_from_what_is_refused(store: WebStore, manners: WebManners) -> None:
    with pytest.raises(FileNotFoundError):
        store.read("b", 6)
    manners.answers = [403]
    with pytest.raises(PermissionError, match="may have run out"):
        store.read("a", 6)


def test_ends_and_limits(store: WebStore) -> None:
    with pytest.raises(EOFError):
        part(store, "a", 4, 3)
    with pytest.raises(EOFError):
        part(store, "a", 6, 1)
    with pytest.raises(OSError) as caught:
        store.read("a", 5)
    assert caught.value.errno == errno.EFBIG


def test_a_busy_server_and_a_cut_connection_are_asked_again(store: WebStore, manners: WebManners) -> None:
    manners.answers = [503, 429]
    assert store.read("a", 6) == b"abcdef"
    manners.cut = 1
    assert part(store, "a", 1, 4) == b"bcde"
    manners.cut = 1
    assert store.read("a", 6) == b"abcdef"


def test_asking_again_ends(web: str, manners: WebManners) -> None:
    store = WebStore(parse_address(f"{web}/run/save-5"), retry_seconds=0.5)
    manners.answers = [500] * 100
    with pytest.raises(OSError, match="the server answers 500"):
        store.read("a", 6)
    assert 2 <= len(manners.paths) <= 4


def test_a_server_that_is_gone_is_an_error() -> None:
    store = WebStore(parse_address("http://127.0.0.1:1/run/save-5?secret=word"), retry_seconds=0.0)
    with pytest.raises(OSError, match="Connection refused") as caught:
        store.read("a", 6)
    assert "word" not in str(caught.value)


def test_only_the_same_scheme_is_followed(store: WebStore, manners: WebManners, web: str, tmp_path: Path) -> None:
    manners.answers, manners.location = [302], f"{web}/run/save-5/a"
    assert store.read("a", 6) == b"abcdef"
    for location in (f"file://{tmp_path}/run/save-5/a", f"ftp{web[4:]}/run/save-5/a"):
        manners.answers, manners.location = [302], location
        with pytest.raises(OSError, match="302"):
            store.read("a", 6)


def test_without_parts_only_small_files_are_read(store: WebStore, manners: WebManners) -> None:
    manners.ranges = False
    assert part(store, "a", 0, 3) == b"abc"
    with pytest.raises(OSError, match="no parts of files"):
        part(store, "a", 1, 3)


def test_it_is_neither_listed_nor_written(store: WebStore, tmp_path: Path) -> None:
    upload = upload_of("x", file_of(tmp_path, "x", b"x"))
    for act in (
        store.list,
        partial(store.put, [], upload, Meter()),
        partial(store.write, "x", b"x"),
        partial(store.create, "x", b"x"),
        partial(store.remove, "x", "y"),
    ):
        with pytest.raises(OSError):
            act()
