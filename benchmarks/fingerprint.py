"""Digests of data sets from a warm cache, on one core, beside reading the same bytes.

python -m benchmarks.fingerprint --json result.json
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import machine, timed
from keepstep.provenance.fingerprint import fingerprint
from keepstep.storage.content import FileDigests

GIB = 2**30


class Held:
    """A data set of a user's: it holds what it is given."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows


def read_all(path: Path) -> None:
    buffer = bytearray(4 * 1024 * 1024)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="size of each data set")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = int(options.gib * GIB)
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as scratch:
        path = Path(scratch) / "data.bin"
        content = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
        content.tofile(path)
        time.sleep(3)  # a file that was written just now is not remembered
        words = [f"a line of text with the number {number} " * 8 for number in range(size // 8 // 280)]
        text_size = sum(map(len, words))
        cache = Path(scratch) / "cache.sqlite"

        def digest(rows: Any, remembered: bool = False) -> None:
            with FileDigests(cache if remembered else None) as files:
                fingerprint(Held(rows), files)

        rates = {}
        for name, amount, work in (
            ("raw read of the file", size, lambda: read_all(path)),
            ("file", size, lambda: digest(str(path))),
            ("mapped file", size, lambda: digest(np.memmap(path, np.uint8, "r"))),
            ("array", size, lambda: digest(content)),
            ("tensor", size, lambda: digest(torch.from_numpy(content))),
            ("list of texts", text_size, lambda: digest(words)),
        ):
            rates[name] = amount / GIB / timed(name, work).median
        digest(str(path), remembered=True)
        again = timed("file, remembered", lambda: digest(str(path), remembered=True))
    print("\n" + "\n".join(f"{name:24s} {rate:6.2f} GiB/s" for name, rate in rates.items()))
    print(f"{'file, remembered':24s} {again.median * 1000:6.2f} ms")
    if options.json:
        facts = {"machine": machine(), "gib_per_second": rates, "remembered_seconds": again.median}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
