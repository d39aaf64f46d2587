import os
import uuid
from pathlib import Path

import pytest

from keepstep.config.address import parse_address
from keepstep.storage.stores.base import Store
from keepstep.storage.stores.meter import Meter
from keepstep.storage.stores.opening import open_store
from tests.rig.faulty_proxy import FaultyProxy
from tests.rig.object_server import SECRET
from tests.storage.stores.conformance import StoreContract, file_of, upload_of


class TestObjectsStore(StoreContract):
    @pytest.fixture
    def store(self, s3: str) -> Store:
        return open_store(parse_address(f"{s3}/{uuid.uuid4().hex}"))


def test_an_object_store_that_does_not_answer_is_not_empty(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")

    with pytest.raises(OSError, match="cannot list s3://") as caught:
        open_store(parse_address(f"{s3}/x")).list()
    assert "another-secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_no_secret_is_in_an_error(proxy: FaultyProxy, s3: str) -> None:
    proxy.manners.answer = 403

    with pytest.raises(OSError) as caught:
        open_store(parse_address(f"{s3}/x")).read("a", 10)
    assert SECRET not in repr(caught.value)


def test_a_server_that_is_busy_for_a_while_is_asked_again(proxy: FaultyProxy, s3: str, tmp_path: Path) -> None:
    refused: list[str] = []

    def first_three(method: str, path: str) -> bool:
        refused.append(path)
        return len(refused) <= 3

    proxy.manners.answer, proxy.manners.when = 503, first_three
    store = open_store(parse_address(f"{s3}/{uuid.uuid4().hex}"))

    store.put([upload_of("a", file_of(tmp_path, "a", b"abc"))], upload_of("l", file_of(tmp_path, "l", b"l")), Meter())

    proxy.manners.answer = 0
    assert store.read("a", 10) == b"abc"
    assert len(refused) > 3


@pytest.mark.parametrize("size", [5000, 9 * 1024 * 1024])
def test_bytes_that_change_on_the_way_are_noticed(proxy: FaultyProxy, s3: str, tmp_path: Path, size: int) -> None:
    store = open_store(parse_address(f"{s3}/{uuid.uuid4().hex}"))
    proxy.manners.flip = True
    last = upload_of("last", file_of(tmp_path, "last", b"l"))

    with pytest.raises(OSError):
        store.put([upload_of("a", file_of(tmp_path, "a", os.urandom(size)))], last, Meter())
    proxy.manners.flip = False
    assert "last" not in [one.name for one in store.list()]


def test_without_tls_nothing_is_sent_unless_it_is_allowed(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")

    with pytest.raises(OSError, match="AWS_ALLOW_HTTP=true"):
        open_store(parse_address(f"{s3}/x")).list()


def test_missing_credentials_are_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    # The machine's own service, which has none: nobody listens there.
    monkeypatch.setattr("keepstep.storage.stores.objects.RETRIES", {"max_retries": 0})

    with pytest.raises(OSError, match="no credentials were found"):
        open_store(parse_address("s3://bucket/x")).list()
