"""A real S3 server for tests: SeaweedFS, started by the tests themselves, on free ports, in a folder of its own."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

KEY, SECRET, BUCKET = "key-of-tests", "secret-of-tests-5f3a", "bucket"
_START_SECONDS = 60
_IDENTITIES = {
    "identities": [
        {
            "name": "tests",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
    ]
}


def weed() -> str | None:
    """The server's program; None where it is not installed."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


def free_ports(number: int) -> list[int]:
    """Ports that nobody uses now, and whose gRPC neighbour (10,000 above) exists."""
    held: list[socket.socket] = []
    ports: list[int] = []
    while len(ports) < number:
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        held.append(one)
        if (port := one.getsockname()[1]) < 55_000:
            ports.append(port)
    for one in held:
        one.close()
    return ports


class ObjectServer:
    """Runs from `start` to `close`. `kill` and `start` again keep what was stored.

    Args:
        core: the processor that it runs on; any where there is none.
    """

    def __init__(self, core: int | None = None) -> None:
        self._prefix = [] if core is None else ["taskset", "--cpu-list", str(core)]
        self.folder = Path(tempfile.mkdtemp(prefix="keepstep-s3-"))
        self.port, *self._others = free_ports(4)
        self._process: subprocess.Popen[bytes] | None = None
        (self.folder / "s3.json").write_text(json.dumps(_IDENTITIES))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def environment(self, endpoint: str = "") -> dict[str, str]:
        """What a client needs to find it."""
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        """Start it, and wait until it answers and takes objects."""
        program = weed()
        assert program is not None
        master, volume, filer = self._others
        command = [
            *self._prefix,
            *(program, "-logtostderr", "server", "-dir", str(self.folder), "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *("-volume.max=0", "-master.volumeSizeLimitMB=64", "-s3", f"-s3.config={self.folder / 's3.json'}"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-master.telemetry=false"),
            "-master.electionTimeout=1s",  # there is one master: it waits that long for others after a kill
            *(f"-s3.port={self.port}", f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"),
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        end = time.monotonic() + _START_SECONDS
        while not self._takes_objects():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """End it at once, as a machine does that loses power."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _takes_objects(self) -> bool:
        from obstore import put
        from obstore.store import S3Store

        try:
            urllib.request.urlopen(self.endpoint, timeout=1)
        except urllib.error.HTTPError:
            pass
        except OSError:
            return False
        store = S3Store(
            BUCKET,
            endpoint=self.endpoint,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        try:
            put(store, ".probe", b"x", use_multipart=False)
        except Exception:  # noqa: BLE001 - it is not ready in one of many ways
            return False
        return True
