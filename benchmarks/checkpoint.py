"""What a checkpoint costs, beside the floors and the peers of the same run.

python -m benchmarks.checkpoint --gib 1.5 --dir /scratch --json result.json

Absolute figures drift from run to run and from machine to machine; the ratios are what counts.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from tests.rig.folders import make_checkpoint
from torch import nn

import keepstep

RUNS = 3


class Weights(nn.Module):
    """Tensors of 32 MiB."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.randn(2048, 4096)) for _ in range(count))


def timed(name: str, gib: float, work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Median seconds of some runs; prints a row."""
    seconds = []
    for _ in range(RUNS):
        before()
        os.sync()
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    print(
        f"{name:44s} {median:8.3f} s  {gib / median:6.2f} GiB/s  ({min(seconds):.3f} to {max(seconds):.3f})", flush=True
    )
    return median


def raw_write(path: Path, views: list[memoryview]) -> None:
    """The floor of a durable save: write and sync."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for view in views:
        while view:
            view = view[os.write(descriptor, view) :]
    os.fsync(descriptor)
    os.close(descriptor)


def save_and_load(gib: float, folder: Path) -> dict[str, float]:
    """Durable saves and verified loads of one state."""
    model = Weights(max(1, round(gib * 32)))
    gib = len(model.layers) / 32
    views = [memoryview(p.detach().numpy()).cast("B") for p in model.layers]
    out = folder / "out"

    def clean() -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)

    def save_keepstep() -> None:
        config = keepstep.CheckpointingConfig(save_dir=str(out), period_steps=1)
        keepstep.Checkpointer(config, keepstep.JobState(model=model), handle_signals=False).save(1)

    def load_keepstep() -> None:
        config = keepstep.CheckpointingConfig(save_dir=str(out), period_steps=1)
        keepstep.Checkpointer(config, keepstep.JobState(model=model), handle_signals=False).resume()

    state = {"model": model.state_dict()}
    raw = timed("raw write + sync (floor)", gib, lambda: raw_write(out / "raw", views), clean)
    timed("torch.save (not synced)", gib, lambda: torch.save(state, out / "weights.pt"), clean)
    dcp_save = timed("dcp.save", gib, lambda: dcp.save(state, checkpoint_id=out / "dcp", no_dist=True), clean)
    dcp_load = timed("dcp.load", gib, lambda: dcp.load(state, checkpoint_id=out / "dcp", no_dist=True))
    ours = timed("keepstep save (digests, durable)", gib, save_keepstep, clean)
    loaded = timed("keepstep resume (every byte verified)", gib, load_keepstep)
    clean()
    return {
        "durable_vs_dcp": ours / dcp_save,
        "durable_vs_floor": ours / raw,
        "load_vs_dcp": dcp_load / loaded,
    }


def listing(folder: Path, count: int = 1000) -> dict[str, float]:
    """`keepstep ls` of many checkpoints, the start of Python included, beside the start of Python and typer alone."""
    run = folder / "many"
    for step in range(1, count + 1):
        make_checkpoint(run, step, size=100)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def start(code: str, *arguments: str) -> None:
        subprocess.run([sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)

    bare = timed("python with typer, nothing done", 0, lambda: start("import typer"))
    ls = timed(
        f"keepstep ls of {count} checkpoints",
        0,
        lambda: start("from keepstep.cli.main import main; main()", "ls", str(run)),
    )
    shutil.rmtree(run)
    return {"ls_seconds": ls, "ls_vs_bare_python": ls / bare}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.5, help="size of the state")
    parser.add_argument("--dir", type=Path, help="scratch folder on the disk that counts")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="keepstep-bench-") as scratch:
        ratios = save_and_load(options.gib, Path(scratch)) | listing(Path(scratch))
    print("\n" + "\n".join(f"{name:24s} {value:.2f}" for name, value in ratios.items()))
    if options.json:
        machine = {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
        }
        options.json.write_text(json.dumps({"gib": options.gib, "machine": machine, "ratios": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    main()
