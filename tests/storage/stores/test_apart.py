import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from keepstep.config.address import parse_address
from keepstep.storage.stores.apart import ApartStore, open_apart
from keepstep.storage.stores.meter import Meter
from keepstep.storage.stores.opening import open_store
from tests.storage.stores.conformance import LARGE, file_of, upload_of

# In a process that has never loaded the client, as a job's.
_PROGRAM = """
import os, sys
from keepstep.config.address import parse_address
from keepstep.storage.stores.apart import open_apart

store = open_apart(parse_address(sys.argv[1]))
assert store.read("a", 10) == b"abc"
pid = os.fork()
if pid == 0:
    from keepstep.storage.stores.opening import open_store

    data = open_store(parse_address(sys.argv[1])).read("a", 10)
    os._exit(0 if data == b"abc" else 1)
assert os.waitpid(pid, 0)[1] == 0
assert store.read("a", 10) == b"abc"
assert "obstore" not in sys.modules
print("both live")
"""


@pytest.fixture
def address(s3: str, tmp_path: Path) -> str:
    address = f"{s3}/{uuid.uuid4().hex}"
    uploads = [
        upload_of("a", file_of(tmp_path, "a", b"abc")),
        upload_of("run/large", file_of(tmp_path, "large", os.urandom(LARGE))),
    ]
    open_store(parse_address(address)).put(uploads, upload_of("last", file_of(tmp_path, "last", b"l")), Meter())
    return address


def test_it_answers_as_the_store_does(address: str, tmp_path: Path) -> None:
    store, plain = ApartStore(parse_address(address)), open_store(parse_address(address))
    target = bytearray(1000)

    assert store.list() == plain.list()
    assert store.list("run") == plain.list("run")
    assert store.read("a", 10) == b"abc"
    store.read_into("run/large", 12_345_678, memoryview(target))
    assert bytes(target) == (tmp_path / "large").read_bytes()[12_345_678:12_346_678]
    with pytest.raises(FileNotFoundError):
        store.read("b", 10)
    with pytest.raises(EOFError):
        store.read_into("a", 1, memoryview(bytearray(3)))
    with pytest.raises(OSError, match="3 bytes"):
        store.read("a", 2)
    assert store.read("a", 10) == b"abc"
    store.close()


def test_a_store_that_cannot_be_asked_is_an_error(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    store = ApartStore(parse_address(f"{s3}/x"))

    with pytest.raises(OSError, match="cannot list"):
        store.list()
    store.close()


def test_it_starts_again_after_its_process_has_died(address: str) -> None:
    store = ApartStore(parse_address(address))
    assert store.read("a", 10) == b"abc"
    assert store._process is not None
    store._process.kill()
    store._process.wait()

    with pytest.raises(OSError, match="has ended"):
        store.read("a", 10)
    store.close()
    assert store.read("a", 10) == b"abc"
    store.close()


def test_a_job_that_has_asked_may_fork_workers_that_ask_too(address: str) -> None:
    found = subprocess.run([sys.executable, "-c", _PROGRAM, address], capture_output=True, text=True, timeout=60)

    assert found.stdout.strip() == "both live", found.stderr


def test_a_folder_needs_no_other_process(tmp_path: Path) -> None:
    assert not isinstance(open_apart(parse_address(f"file://{tmp_path}")), ApartStore)


def test_a_job_that_goes_in_the_middle_of_an_answer_leaves_no_traceback(
    address: str, capfd: pytest.CaptureFixture[str]
) -> None:
    store = ApartStore(parse_address(address))
    connection = store._connection()
    connection.sendall(b'{"do": "range", "name": "run/large", "offset": 0, "length": 20000000}\n')
    assert connection.recv(10)
    connection.close()  # with most of it unread

    assert store.read("a", 10) == b"abc"
    store.close()
    assert "Traceback" not in capfd.readouterr().err
