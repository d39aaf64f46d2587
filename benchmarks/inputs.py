"""Data sets over files: coming back to a late position, and the memory that it takes.

python -m benchmarks.inputs
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keepstep.data import files
from keepstep.data.loader import GlobalBatchLoader
from keepstep.plan.batching import divide
from keepstep.storage import file_index

BATCH = 32


def record(number: int) -> dict[str, Any]:
    return {"id": number, "text": "word " * (20 + number % 60)}


def write_jsonl(path: Path, count: int) -> None:
    with path.open("w") as file:
        file.writelines(json.dumps(record(number)) + "\n" for number in range(count))


def write_parquet(path: Path, count: int) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist([record(n) for n in range(count)]), path, row_group_size=10_000)


def write_tar(path: Path, count: int) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number in range(count):
            content = json.dumps(record(number)).encode()
            member = tarfile.TarInfo(f"{number:07}.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


WRITERS: dict[str, Callable[[Path, int], None]] = {"jsonl": write_jsonl, "parquet": write_parquet, "tar": write_tar}


def resident_mib() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def start(kind: str, path: str) -> None:
    """What one start of a job does with its data: length, then the first batch at nine tenths of it."""
    file_index._SETTLED_NS = -(10**18)
    make = getattr(files, kind)
    before = resident_mib()
    begin = time.perf_counter()
    loader = GlobalBatchLoader(make(path), divide(BATCH, None, 1), 0, seed=0, shuffle=False, epochs=1)
    known = time.perf_counter()
    length = len(loader.dataset)
    loader.load_state_dict({**loader.state_dict(), "samples": length * 9 // 10})
    (micro,) = next(iter(loader))
    there = time.perf_counter()
    assert micro.indices[0] == length * 9 // 10
    more = resident_mib() - before
    begin_row = time.perf_counter()
    rows = min(100_000, length)
    for index in range(rows):
        loader.dataset[index]
    rate = rows / (time.perf_counter() - begin_row)
    print(
        f"length {1e3 * (known - begin):9.1f} ms, then batch at {length * 9 // 10:,}: {1e3 * (there - known):6.1f} ms, "
        f"{more:5.1f} MiB more; {rate:,.0f} records/s in order, {resident_mib() - before:.1f} MiB more"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--start", nargs=2, metavar=("KIND", "PATH"))
    asked = parser.parse_args()
    if asked.start:
        start(*asked.start)
        return
    with tempfile.TemporaryDirectory() as folder:
        for kind, write in WRITERS.items():
            path = Path(folder) / f"records.{kind}"
            write(path, asked.count)
            for what in ("first start", "any later one"):
                print(f"{kind:8s} {path.stat().st_size / 2**20:5.0f} MiB  {what:14s}", end="", flush=True)
                command = [sys.executable, "-m", "benchmarks.inputs", "--start", kind, str(path)]
                subprocess.run(command, check=True, env={**os.environ, "XDG_CACHE_HOME": folder})


if __name__ == "__main__":
    main()
