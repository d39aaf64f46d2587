"""`keepstep diff` of two checkpoints of one job at two steps, the start of Python included, beside a raw read of both.

python -m benchmarks.diff --gib 1.5 --dir /scratch --json result.json

All files are in the cache; with `--values` all tensors differ and every byte is read.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import keepstep
from benchmarks.checkpoint import Weights
from benchmarks.measure import Row, machine
from keepstep.ops.diff import diff as compare

_PIECE = 1 << 20
_RUNS = 3


def save_two(run: Path, gib: float) -> list[Path]:
    """Checkpoints of steps 1 and 2; in between every weight changes."""
    model = Weights(max(1, round(gib * 32)))
    config = keepstep.CheckpointingConfig(save_dir=str(run), period_steps=1, num_to_keep=None)
    with keepstep.Checkpointer(config, keepstep.JobState(model=model), "run", handle_signals=False) as saver:
        saver.save(1)
        with torch.no_grad():
            for layer in model.layers:
                layer.add_(torch.randn_like(layer), alpha=1e-3)
        saver.save(2)
    return [run / "run" / f"save-{step}" for step in (1, 2)]


def raw_read(folders: list[Path]) -> None:
    """Every byte of the shard files into one buffer, on one thread."""
    buffer = memoryview(bytearray(_PIECE))
    for folder in folders:
        for path in folder.glob("*.distcp"):
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.5, help="size of each checkpoint")
    parser.add_argument("--dir", type=Path, help="where to work")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    code = "from keepstep.cli.main import main; main()"

    with tempfile.TemporaryDirectory(prefix="keepstep-bench-", dir=options.dir) as scratch:
        folders = save_two(Path(scratch), options.gib)

        def diff(*words: str) -> None:
            command = [sys.executable, "-c", code, "diff", *map(str, folders), *words]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)

        works = {
            "floor: raw read of both, one thread": lambda: raw_read(folders),
            "keepstep diff": diff,
            "keepstep diff --values": lambda: diff("--values"),
            "the same inside of a process": lambda: compare(*map(str, folders), values=True),
        }
        raw_read(folders)
        rows = [Row(name, [], 2 * options.gib if name != "keepstep diff" else 0) for name in works]
        for _ in range(_RUNS):  # by turns: the machine's speed drifts
            for row, work in zip(rows, works.values(), strict=True):
                start = time.perf_counter()
                work()
                row.seconds.append(time.perf_counter() - start)
    for row in rows:
        print(row.line())
    raw, digests, command, values = rows
    ratios = {
        "diff_seconds": digests.median,
        "values_command_vs_raw_read": command.median / raw.median,
        "values_vs_raw_read": values.median / raw.median,
    }
    print("\n" + "\n".join(f"{name:28s} {value:.2f}" for name, value in ratios.items()))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "ratios": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    main()
