"""Against a stand-in for the Hub in this process (tests/rig/hub_server.py), not the Hub itself."""

import errno
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants, file_download
from huggingface_hub.utils import _http

from keepstep.config.address import parse_address
from keepstep.storage.stores import hub_calls
from keepstep.storage.stores.base import ChangedFileError, Store
from keepstep.storage.stores.hub import open_hub
from keepstep.storage.stores.hub_files import CountedFile
from keepstep.storage.stores.meter import Meter
from tests.rig.hub_server import FIRST_COMMIT, HubServer
from tests.storage.stores.conformance import StoreContract, file_of, upload_of

TOKEN = "hf_0123456789abcdefghij"
NAME = "me/run"
WEIGHTS = bytes(range(256)) * 40


def close_session() -> None:
    close = getattr(huggingface_hub.utils, "close_session", None) or _http.reset_sessions
    close()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    server = HubServer()
    server.only_token = TOKEN
    template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(file_download, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # The waits between tries are seconds.
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 500)))
    monkeypatch.setattr(hub_calls, "FIRST_PAUSE", 0.01)
    close_session()
    yield server
    server.heal()
    server.close()
    close_session()


@pytest.fixture
def store(hub: HubServer) -> Store:
    return open_hub(parse_address(f"hf://{NAME}/folder"))


def put(store: Store, sources: Path, prefix: str, files: dict[str, bytes], meter: Meter | None = None) -> None:
    uploads = [upload_of(f"{prefix}/{name}", file_of(sources, name, data)) for name, data in files.items()]
    last = upload_of(f"{prefix}/manifest.json", file_of(sources, "manifest.json", prefix.encode()))
    store.put(uploads, last, meter or Meter())


class TestHubStore(StoreContract):
    pass


class TestAtTheRootOfARepository(StoreContract):
    """Where a file of the Hub's own lies, which is hidden here."""

    @pytest.fixture
    def store(self, hub: HubServer) -> Store:
        repo = hub.repo("me/other", private=True)
        repo.put("nothing at all", {}, (".gitattributes",))
        return open_hub(parse_address("hf://me/other"))


def test_the_repository_is_made_at_the_first_write_and_private(hub: HubServer, store: Store) -> None:
    assert store.list() == []
    store.remove("run/save-1", "manifest.json")
    assert NAME not in hub.repos

    store.write("note", b"1")

    assert hub.repos[NAME].private


def test_a_repository_that_is_there_stays_as_public_as_it_is(hub: HubServer, store: Store) -> None:
    hub.repo(NAME, private=False)

    store.write("note", b"1")

    assert not hub.repos[NAME].private
    assert hub.count("repos/create") == 0


def test_all_files_of_a_checkpoint_and_its_copy_come_by_one_commit(
    hub: HubServer, store: Store, tmp_path: Path
) -> None:
    put(store, tmp_path, "run/save-1", {"a.json": b"1", "gone.json": b"2", "model.safetensors": WEIGHTS})
    before = len(hub.repos[NAME].commits)
    meter = Meter()
    put(store, tmp_path, "run/save-2", {"a.json": b"3", "model.safetensors": WEIGHTS[::-1]}, meter)

    commits = hub.repos[NAME].commits
    assert len(commits) == before + 1
    assert {name: data for name, data in commits[-1].files.items() if "save-1/" not in name and "/" in name} == {
        "folder/run/save-2/a.json": b"3",
        "folder/run/save-2/manifest.json": b"run/save-2",
        "folder/run/save-2/model.safetensors": WEIGHTS[::-1],
        "folder/run/last-checkpoint/a.json": b"3",
        "folder/run/last-checkpoint/manifest.json": b"run/save-2",
        "folder/run/last-checkpoint/model.safetensors": WEIGHTS[::-1],
    }
    # The bytes of a large file go once.
    assert hub.count("PUT /lfs/") == 2
    assert meter.total == 1 + len(WEIGHTS) + len("run/save-2")
    assert not any("last-checkpoint" in one.name for one in store.list())

    store.remove("run/save-2", "manifest.json")

    assert "folder/run/last-checkpoint/model.safetensors" in hub.repos[NAME].files
    assert all("save-2" not in name for name in hub.repos[NAME].files)


def test_what_is_no_checkpoint_has_no_copy(hub: HubServer, store: Store, tmp_path: Path) -> None:
    put(store, tmp_path, "run/export", {"a": b"1"})

    assert all("last-checkpoint" not in name for name in hub.repos[NAME].files)


def test_a_checkpoint_that_was_put_before_is_put_again_without_its_large_files(
    hub: HubServer, store: Store, tmp_path: Path
) -> None:
    for _ in range(2):
        put(store, tmp_path, "run/save-1", {"model.safetensors": WEIGHTS})

    assert hub.count("PUT /lfs/") == 1
    assert store.read("run/save-1/model.safetensors", 1 << 20) == WEIGHTS


def test_what_is_older_and_put_later_is_not_the_last(hub: HubServer, store: Store, tmp_path: Path) -> None:
    for step in (1, 2, 1):
        put(store, tmp_path, f"run/save-{step}", {"model.safetensors": WEIGHTS + bytes([step])})

    assert hub.repos[NAME].files["folder/run/last-checkpoint/model.safetensors"] == WEIGHTS + b"\2"
    assert hub.repos[NAME].files["folder/run/last-checkpoint/manifest.json"] == b"run/save-2"


def test_nothing_is_left_out_for_a_gitignore(hub: HubServer, store: Store, tmp_path: Path) -> None:
    put(store, tmp_path, "run/save-1", {"a": b"1"})

    asked = hub.bodies("preupload")
    assert asked
    assert all(b'"gitIgnore": ""' in one or b'"gitIgnore":""' in one for one in asked)


def test_manifests_have_dates(hub: HubServer, store: Store, tmp_path: Path) -> None:
    hub.repo(NAME)
    put(store, tmp_path, "run/save-1", {"a": b"1"})
    put(store, tmp_path, "run/save-2", {"a": b"1"})

    dates = {one.name: one.modified for one in store.list()}
    assert dates == {
        "run/save-1/a": 0.0,
        "run/save-1/manifest.json": FIRST_COMMIT + 60.0,
        "run/save-2/a": 0.0,
        "run/save-2/manifest.json": FIRST_COMMIT + 120.0,
    }


def test_a_long_listing_comes_in_pages(hub: HubServer, store: Store, tmp_path: Path) -> None:
    hub.page = 3
    put(store, tmp_path, "run/save-1", {f"{number}": b"1" for number in range(10)})

    assert len(store.list("run")) == 11


def test_a_large_file_that_goes_in_parts_is_whole_and_within_the_bandwidth(
    hub: HubServer, store: Store, tmp_path: Path
) -> None:
    hub.part = 3000
    begun = time.monotonic()
    meter = Meter(bytes_per_second=20_000)
    put(store, tmp_path, "run/save-1", {"model.safetensors": WEIGHTS}, meter)

    # 10240 bytes; a quarter of a second's may go at once.
    assert time.monotonic() - begun > 0.2
    assert meter.total == len(WEIGHTS) + len("run/save-1")
    assert hub.repos[NAME].files["folder/run/save-1/model.safetensors"] == WEIGHTS


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_large_file_is_fetched_where_the_hub_keeps_it(
    hub: HubServer, store: Store, tmp_path: Path, knows_ranges: bool
) -> None:
    put(store, tmp_path, "run/save-1", {"model.safetensors": WEIGHTS})
    hub.sends_elsewhere, hub.knows_ranges = True, knows_ranges

    target = bytearray(100)
    store.read_into("run/save-1/model.safetensors", 5000, memoryview(target))
    assert bytes(target) == WEIGHTS[5000:5100]
    with pytest.raises(EOFError, match="ends at byte 10240"):
        store.read_into("run/save-1/model.safetensors", 10200, memoryview(target))
    with pytest.raises(OSError) as caught:
        store.read("run/save-1/model.safetensors", 10239)
    assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize("name", ["model.safetensors", "a.json"])
def test_what_is_stored_and_differs_is_no_checkpoint(hub: HubServer, store: Store, tmp_path: Path, name: str) -> None:
    hub.spoils = re.compile(f"save-1/{name}")

    with pytest.raises(OSError, match=f"run/save-1/{name} is not what was sent") as caught:
        put(store, tmp_path, "run/save-1", {"model.safetensors": WEIGHTS, "a.json": b"12"})
    assert caught.value.errno == errno.EIO
    assert [one for one in hub.repos[NAME].files if one.endswith("manifest.json")] == []


def test_a_copy_that_differs_is_no_checkpoint(hub: HubServer, store: Store, tmp_path: Path) -> None:
    hub.spoils = re.compile("last-checkpoint/model")

    with pytest.raises(OSError, match=r"last-checkpoint/model\.safetensors is not what was sent"):
        put(store, tmp_path, "run/save-1", {"model.safetensors": WEIGHTS})
    assert [one for one in hub.repos[NAME].files if one.endswith("manifest.json")] == []


@pytest.mark.parametrize("fault", ["500", "503", "429", "drop"])
def test_a_hub_that_fails_for_a_while_is_asked_again(
    hub: HubServer, store: Store, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.retry_after = 0
    hub.plan(fault, "GET /api/models/me/run$", times=2)
    hub.plan(fault, "tree", times=2)
    hub.plan(fault, "commit", times=2)
    hub.plan(fault, "PUT /lfs", times=2)
    hub.plan(fault, "paths-info", times=2)
    hub.plan(fault, "resolve", times=2)

    put(store, tmp_path, "run/save-1", {"model.safetensors": WEIGHTS})

    assert store.read("run/save-1/model.safetensors", 1 << 20) == WEIGHTS
    assert len(store.list()) == 2


def test_an_upload_begins_anew_where_the_client_gives_it_up(hub: HubServer, store: Store, tmp_path: Path) -> None:
    hub.plan("500", "PUT /lfs", times=8)
    meter = Meter()

    put(store, tmp_path, "run/save-1", {"model.safetensors": WEIGHTS}, meter)

    assert hub.count("PUT /lfs") == 9
    assert meter.total == len(WEIGHTS) + len("run/save-1")
    assert store.read("run/save-1/model.safetensors", 1 << 20) == WEIGHTS


def test_an_answer_that_is_cut_off_is_asked_for_again(hub: HubServer, store: Store, tmp_path: Path) -> None:
    put(store, tmp_path, "run/save-1", {"model.safetensors": WEIGHTS})
    hub.plan("cut", "resolve", times=2)

    assert store.read("run/save-1/model.safetensors", 1 << 20) == WEIGHTS
    assert hub.count("resolve.*model") == 3


def test_a_hub_that_fails_for_ever_is_given_up(hub: HubServer, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_calls, "PATIENCE", 0.3)
    hub.plan("500", "tree")
    hub.plan("500", "resolve")

    with pytest.raises(OSError, match="cannot list hf://me/run/folder") as caught:
        store.list()
    assert not isinstance(caught.value, FileNotFoundError)
    assert caught.value.__cause__ is None
    with pytest.raises(OSError, match="cannot read hf://me/run/folder/a") as caught:
        store.read("a", 10)
    assert not isinstance(caught.value, FileNotFoundError)


def test_a_wait_that_the_hub_asks_for_is_kept_within_bounds(hub: HubServer, store: Store) -> None:
    hub.repo(NAME)
    hub.retry_after = 1
    hub.plan("429", "resolve", times=1)
    begun = time.monotonic()
    with pytest.raises(FileNotFoundError):
        store.read("a", 10)
    assert time.monotonic() - begun > 1

    hub.retry_after = 100_000
    hub.plan("429", "resolve")
    with pytest.raises(OSError, match="429"):
        store.read("a", 10)


def test_a_hub_that_never_answers_is_given_up(hub: HubServer, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_calls, "SILENCE", 0.3)
    hub.plan("hang", "tree")

    with pytest.raises(TimeoutError, match="nothing has come"):
        store.list()


def test_a_token_that_is_refused_sees_no_empty_store(
    hub: HubServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hf_another0123456789abc"
    monkeypatch.setenv("HF_TOKEN", secret)

    for call in (store.list, lambda: store.write("a", b"1"), lambda: store.read("a", 1)):
        with pytest.raises(PermissionError, match="hf auth login") as caught:
            call()
        assert secret not in repr(caught.value)


def test_without_a_token_there_is_no_empty_store(hub: HubServer, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")

    for only_token in (TOKEN, None):  # the Hub hides what is missing by 401; others tell 404
        hub.only_token = only_token
        for call in (store.list, lambda: store.read("a", 1)):
            with pytest.raises(PermissionError, match="hf auth login"):
                call()


def test_a_token_that_may_not_write_is_told_so(hub: HubServer, store: Store, tmp_path: Path) -> None:
    hub.repo(NAME)
    hub.plan("403", "commit")

    with pytest.raises(PermissionError, match=r"cannot commit to hf://me/run: .*needs rights"):
        put(store, tmp_path, "run/save-1", {"a": b"1"})
    assert hub.count("commit") == 1


def test_a_token_is_never_in_a_text(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "unusual-token")
    text = hub_calls.safe_text(OSError("hf_abcdefghijklmnop unusual-token https://x/y?X-Amz-Signature=1 end"))

    assert text == "OSError: hf_... ... https://x/y?... end"


def test_a_commit_whose_answer_is_lost_is_no_failure(hub: HubServer, store: Store, tmp_path: Path) -> None:
    hub.repo(NAME)
    hub.plan("lost", "commit", times=1)
    put(store, tmp_path, "run/save-1", {"a": b"1"})
    assert len(store.list()) == 2

    hub.plan("lost", "commit", times=1)
    assert store.create("note", b"mine")


def test_commits_of_others_are_no_failure(hub: HubServer, store: Store, tmp_path: Path) -> None:
    repo = hub.repo(NAME)
    hub.before_commit = lambda: repo.put("theirs", {"folder/run/last-checkpoint/theirs": b"1"})

    put(store, tmp_path, "run/save-1", {"model.safetensors": WEIGHTS})

    # It was looked at again what has to go.
    assert "folder/run/last-checkpoint/theirs" not in repo.files
    assert len(store.list()) == 2


def test_of_two_that_create_the_same_one_does(hub: HubServer, store: Store) -> None:
    repo = hub.repo(NAME)
    hub.before_commit = lambda: repo.put("theirs", {"folder/note": b"theirs"})

    assert not store.create("note", b"mine!!")
    assert store.read("note", 10) == b"theirs"


def test_of_many_that_create_at_once_one_does(hub: HubServer) -> None:
    hub.repo(NAME)
    stores = [open_hub(parse_address(f"hf://{NAME}")) for _ in range(4)]

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda number: stores[number].create("note", b"%d" % number), range(4)))

    assert made.count(True) == 1
    assert stores[0].read("note", 10) == b"%d" % made.index(True)


def test_nothing_is_sent_of_a_changed_file(hub: HubServer, store: Store, tmp_path: Path) -> None:
    bad = upload_of("run/save-1/bad", file_of(tmp_path, "bad", b"x" * 100))
    bad.path.write_bytes(b"y" * 100)

    with pytest.raises(ChangedFileError, match="bad"):
        store.put([bad], upload_of("run/save-1/last", file_of(tmp_path, "last", b"l")), Meter())
    assert hub.asked == []


def test_an_end_while_bytes_are_sent_makes_no_commit_and_is_not_tried_again(
    hub: HubServer, store: Store, tmp_path: Path
) -> None:
    def end(count: int) -> None:
        if count:  # not while it is only digested
            raise InterruptedError("stop")

    meter = Meter(on_bytes=end)
    with pytest.raises(InterruptedError, match="stop"):
        put(store, tmp_path, "run/save-1", {"model.safetensors": WEIGHTS}, meter)
    assert store.list() == []
    assert hub.count("PUT /lfs/") <= 1
    assert hub.count("preupload") <= 2  # one for each file


def test_a_file_that_shrinks_while_it_is_read_is_a_changed_one(tmp_path: Path) -> None:
    upload = upload_of("a", file_of(tmp_path, "a", b"abcdef"))
    file = CountedFile(upload, Meter())
    assert file.read(2) == b"ab"
    upload.path.write_bytes(b"abc")

    with pytest.raises(hub_calls.StoppedError) as caught:
        file.read()
    assert isinstance(caught.value.error, ChangedFileError)
    file.close()


def test_no_file_stays_open(store: Store, tmp_path: Path) -> None:
    put(store, tmp_path, "run/save-1", {"model.safetensors": WEIGHTS, "a.json": b"1"})

    links = [
        os.readlink(f"/proc/self/fd/{one}")
        for one in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{one}")
    ]
    assert not [one for one in links if one.startswith(str(tmp_path))]


def test_an_upload_makes_no_noise(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    logging.getLogger("huggingface_hub").addHandler(caplog.handler)
    try:
        put(store, tmp_path, "run/save-1", {"model.safetensors": WEIGHTS, "b.safetensors": WEIGHTS[::-1]})
    finally:
        logging.getLogger("huggingface_hub").removeHandler(caplog.handler)

    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []
    assert capfd.readouterr().err == ""


def test_the_library_is_not_loaded_before_it_is_needed() -> None:
    code = (
        "import sys, keepstep.ops.listing\n"
        "from keepstep.storage.stores.hub import open_hub\n"
        "from keepstep.config.address import parse_address\n"
        "open_hub(parse_address('hf://me/run'))\n"
        "assert 'huggingface_hub' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
