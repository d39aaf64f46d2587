"""What output parts and checkpoints cost an inference job with short rows: the same loop with and without them.

python -m benchmarks.outputs
"""

import argparse
import cProfile
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import machine
from keepstep.checkpoint.checkpointer import Checkpointer
from keepstep.config import JobConfig, parse_job
from keepstep.job import predicting
from keepstep.job.inference import InferenceJob
from keepstep.job.protocols import JobContext
from keepstep.job.sink import OutputSink

_PAGE = os.sysconf("SC_PAGE_SIZE")
length = 0
width = 64
marks: dict[int, tuple[float, float, int]] = {}


class Inputs:
    kind = "numbers"

    def __len__(self) -> int:
        return length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), index % 1000 / 1000)


class Labels:
    """A label, a score and a short text for each sample; every batch notes the time and the memory."""

    def __init__(self) -> None:
        self.done = 0

    def predict(self, model: torch.nn.Module, batch: torch.Tensor) -> list[dict[str, Any]]:
        scores = model(batch.repeat(1, width)[:, :width]).softmax(-1)
        best, labels = scores.max(-1)
        self.done += len(batch)
        marks[self.done] = (time.perf_counter(), time.process_time(), _resident())
        return [
            {"label": label, "score": score, "text": f"class {label}"}
            for label, score in zip(labels.tolist(), best.tolist(), strict=True)
        ]

    def collect(self, results: Any) -> None:
        """Needed by the loop without outputs; nothing is kept."""

    def state_dict(self) -> dict[str, int]:
        return {"done": 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


class Kept(Labels):
    """The same for outputs: no `collect`."""

    collect = property()  # type: ignore[assignment]


def inputs(context: JobContext) -> Inputs:
    return Inputs()


def model(context: JobContext) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 10))


def labels(context: JobContext) -> Labels:
    return Labels()


def kept(context: JobContext) -> Labels:
    return Kept()


def job(folder: Path, batch: int, period: int, format: str | None) -> JobConfig:
    task = "labels" if format is None else "kept"
    outputs = None if format is None else {"to": str(folder / "out"), "format": format}
    return parse_job(
        {
            "providers": {
                "model": "benchmarks.outputs:model",
                "dataset": "benchmarks.outputs:inputs",
                "task": f"benchmarks.outputs:{task}",
            },
            "inference": {
                "batching": {"global_batch_size": batch},
                "logging": {"period_steps": 1_000_000},
                "checkpointing": {
                    "save_dir": str(folder / "saves"),
                    "period_steps": "disable" if format is None else period,
                    "num_to_keep": 2,
                },
                "outputs": outputs,
            },
        }
    )


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def _watch(spent: list[float], owner: Any, name: str) -> None:
    """Note the processor time of each call of a method."""
    original = getattr(owner, name)

    def timed(*arguments: Any, **more: Any) -> Any:
        begin = time.thread_time()
        try:
            return original(*arguments, **more)
        finally:
            spent.append(time.thread_time() - begin)

    setattr(owner, name, timed)


def run_once(arguments: argparse.Namespace) -> dict[str, float]:
    """One job in this process; seconds from its first batch to its end, and memory at a tenth and at the end."""
    import benchmarks.outputs as shared

    shared.length, shared.width = arguments.rows, arguments.width
    torch.set_num_threads(1)
    format = None if arguments.child == "without" else arguments.child
    profile = cProfile.Profile() if arguments.profile else None
    spent: list[float] = []
    if format is not None:
        # What the other loop has not.
        _watch(spent, predicting, "rows_of")
        _watch(spent, OutputSink, "add")
        _watch(spent, OutputSink, "publish")
        _watch(spent, OutputSink, "finish")
        _watch(spent, Checkpointer, "save")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        task = InferenceJob(job(Path(folder), arguments.batch, arguments.period, format))
        if profile is not None:
            profile.enable()
        task.run()
        wall, cpu = time.perf_counter(), time.process_time()
    if profile is not None:
        profile.disable()
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)
    found = shared.marks
    first = found[min(found)]
    tenth = min((done for done in found if done >= arguments.rows / 10), default=arguments.rows)
    return {
        "wall": wall - first[0],
        "cpu": cpu - first[1],
        "share": sum(spent) / (cpu - first[1]),
        "tenth": found[tenth][2] / 1e6,
        "end": found[max(found)][2] / 1e6,
    }


def child(arguments: argparse.Namespace, kind: str) -> dict[str, float]:
    words = [sys.executable, "-m", "benchmarks.outputs", "--child", kind]
    for name in ("rows", "batch", "period", "width", "folder"):
        if getattr(arguments, name) is not None:
            words += [f"--{name}", str(getattr(arguments, name))]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=500, help="samples of a step")
    parser.add_argument("--period", type=int, default=250, help="steps between two checkpoints")
    parser.add_argument("--width", type=int, default=1024, help="of the model: its weights are the square of it")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--format", default="jsonl")
    parser.add_argument("--folder", default=None, help="where the files go")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help="of one job with outputs")
    arguments = parser.parse_args()
    if arguments.profile:
        arguments.child = arguments.child or arguments.format
    if arguments.child:
        print(json.dumps(run_once(arguments)))
        return
    print(machine())
    ratios, cpu_ratios = [], []
    for _ in range(arguments.pairs):
        without, with_parts = child(arguments, "without"), child(arguments, arguments.format)
        ratios.append(without["wall"] / with_parts["wall"])
        cpu_ratios.append(without["cpu"] / with_parts["cpu"])
        print(
            f"without {arguments.rows / without['wall']:.0f} rows/s, {arguments.format} "
            f"{arguments.rows / with_parts['wall']:.0f} rows/s: ratio {ratios[-1]:.3f} (processor time "
            f"{cpu_ratios[-1]:.3f}; by its parts {1 - with_parts['share']:.3f}); memory {with_parts['tenth']:.1f} MB "
            f"at 10 %, {with_parts['end']:.1f} MB at the end",
            flush=True,
        )
    print(f"median ratio {statistics.median(ratios):.3f}, of processor time {statistics.median(cpu_ratios):.3f}")


if __name__ == "__main__":
    main()
