"""Uploads to a real S3 server (SeaweedFS, started here): their speed beside obstore's own, and what they cost a job.

python -m benchmarks.mirror --mib 256 --runs 5 --json result.json

The server runs on the last core, the job (and the process that uploads for it) on the first.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import obstore
import torch
from tests.rig.object_server import BUCKET, ObjectServer

import keepstep
from benchmarks.measure import machine
from keepstep.config.address import parse_address
from keepstep.plan.layout import MANIFEST
from keepstep.storage.stores.meter import Meter
from keepstep.storage.stores.opening import open_store
from keepstep.storage.transfer import push_checkpoint

_LAYER = 1024
_STEPS = 400


def _state(mib: int) -> keepstep.JobState:
    layers = [torch.nn.Linear(_LAYER, _LAYER, bias=False) for _ in range(max(1, mib * 2**20 // (_LAYER * _LAYER * 4)))]
    return keepstep.JobState(model=torch.nn.ModuleList(layers))


def uploads(folder: Path, mib: int, runs: int) -> dict[str, Any]:
    """A checkpoint through keepstep, and its files through obstore's multipart put, in turns."""
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=1)
    with keepstep.Checkpointer(config, _state(mib), "exp") as checkpointer:
        checkpointer.save(1)
    path = folder / "exp" / "save-1"
    size = sum(file.stat().st_size for file in path.iterdir())
    store, raw = open_store(parse_address(f"s3://{BUCKET}/own")), obstore.store.from_url(f"s3://{BUCKET}/raw")
    own_seconds, raw_seconds = [], []
    for _ in range(runs):
        start = time.perf_counter()
        for file in sorted(path.iterdir()):
            obstore.put(raw, f"save-1/{file.name}", file)
        raw_seconds.append(time.perf_counter() - start)
        store.remove("save-1", MANIFEST)
        start = time.perf_counter()
        push_checkpoint(path, store, "", Meter())
        own_seconds.append(time.perf_counter() - start)
    ratios = [raw / own for raw, own in zip(raw_seconds, own_seconds, strict=True)]
    print(f"{size / 2**20:.0f} MiB: obstore {statistics.median(raw_seconds):.2f} s, keepstep", end=" ")
    print(f"{statistics.median(own_seconds):.2f} s; ratio {statistics.median(ratios):.2f}")
    return {"raw_seconds": raw_seconds, "own_seconds": own_seconds, "upload_ratio": statistics.median(ratios)}


def _loop(folder: Path, mib: int, mirror: Any) -> tuple[float, float]:
    """Steps of a job that saves twice. Returns the seconds of its steps, and of all of them with the saves."""
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=_STEPS // 2, num_to_keep=1, mirror=mirror)
    left, right = torch.randn(256, 256), torch.randn(256, 256)
    stepping = 0.0
    checkpointer = keepstep.Checkpointer(config, _state(mib), "exp", _STEPS)
    checkpointer.resume()
    begun = time.perf_counter()
    for step in range(1, _STEPS + 1):
        start = time.perf_counter()
        for _ in range(20):
            left @ right
        stepping += time.perf_counter() - start
        if step != _STEPS:
            checkpointer.save_if_due(step)
    whole = time.perf_counter() - begun
    checkpointer.close()
    return stepping, whole


def lost(base: Path, mib: int, runs: int) -> dict[str, Any]:
    """Steps while a checkpoint is uploaded, beside the same steps without a mirror, in turns."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {0})
    plain, mirrored = [], []
    for number in range(runs):
        plain.append(_loop(base / f"plain-{number}", mib, ())[0])
        address = {"address": f"s3://{BUCKET}/lost-{number}", "wait_seconds": 120}
        mirrored.append(_loop(base / f"mirrored-{number}", mib, address)[0])
    share = statistics.median(with_ / without for with_, without in zip(mirrored, plain, strict=True)) - 1
    print(
        f"{_STEPS} steps: {statistics.median(plain):.2f} s, with uploads {statistics.median(mirrored):.2f} s", end="; "
    )
    print(f"{share:+.1%}")
    return {"plain_seconds": plain, "mirrored_seconds": mirrored, "lost_share": share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="size of the checkpoint")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    server = ObjectServer(core=max(os.sched_getaffinity(0)))
    server.start()
    os.environ.update(server.environment())
    try:
        with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as scratch:
            base = Path(scratch)
            found = {"uploads": uploads(base / "up", options.mib, options.runs)}
            found["lost"] = lost(base, options.mib // 4, options.runs)
    finally:
        server.close()
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
