"""What a checkpoint costs, beside the floors and the peers of the same run.

python -m benchmarks.checkpoint --gib 1.5 --dir /scratch --json result.json

Absolute figures drift from run to run and from machine to machine; the ratios are what counts.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import keepstep
from benchmarks import peers
from benchmarks.measure import (
    Asynchronous,
    Row,
    Training,
    asynchronous,
    machine,
    median_of,
    raw_direct_write,
    raw_read,
    raw_write,
    timed,
)
from keepstep.storage.buffers import PageBuffer


class Weights(nn.Module):
    """Tensors of 32 MiB."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.randn(2048, 4096)) for _ in range(count))


@dataclass
class Bench:
    """One state, measured with everything.

    Attributes:
        ratios: what the README shows.
    """

    gib: float
    folder: Path
    runs: int
    model: Weights = field(init=False)
    rows: list[Row] = field(default_factory=list)
    saves: dict[str, Asynchronous] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = Weights(max(1, round(self.gib * 32)))
        self.gib = len(self.model.layers) / 32
        self.state = {f"layers.{number}": layer.detach() for number, layer in enumerate(self.model.layers)}
        self.target = {name: torch.zeros_like(value) for name, value in self.state.items()}
        self.out = self.folder / "out"

    def run(self) -> None:
        self._clean()
        self._floors()
        self._durable()
        self._asynchronous()
        self._workers()
        self._loads()
        shutil.rmtree(self.out)

    def _clean(self) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)

    def _time(self, name: str, work: Callable[[], object], *, clean: bool = False) -> float:
        row = timed(name, work, gib=self.gib, before=self._clean if clean else lambda: None, runs=self.runs)
        self.rows.append(row)
        return row.median

    def _by_turns(self, *works: tuple[str, Callable[[], object]], clean: bool = False) -> list[float]:
        rows = [Row(name, [], self.gib) for name, _ in works]
        for _ in range(self.runs):
            for row, (_, work) in zip(rows, works, strict=True):
                if clean:
                    self._clean()
                os.sync()
                start = time.perf_counter()
                work()
                row.seconds.append(time.perf_counter() - start)
        for row in rows:
            print(row.line(), flush=True)
        self.rows += rows
        return [row.median for row in rows]

    def _copy(self) -> None:
        for name, value in self.state.items():
            self.target[name].copy_(value)

    def _floors(self) -> None:
        views = [memoryview(value.numpy()).cast("B") for value in self.state.values()]
        targets = [memoryview(value.numpy()).cast("B") for value in self.target.values()]
        self.copy = self._time("floor: copy in warm memory", self._copy)
        self._time("floor: raw write + sync", lambda: raw_write(self.out / "raw", views), clean=True)
        raw_write(self.out / "raw", views)
        self._time("floor: raw read, warm cache", lambda: raw_read(self.out / "raw", targets))

    def _durable(self) -> None:
        path = self.out / "weights.pt"
        self._time("torch.save (not synced)", lambda: torch.save(self.state, path), clean=True)
        if peers.is_installed("safetensors"):
            from safetensors.torch import save_file

            self._time("safetensors save_file (not synced)", lambda: save_file(self.state, path), clean=True)
        dcp_save = self._time(
            "dcp.save", lambda: dcp.save({"m": self.state}, checkpoint_id=self.out / "dcp"), clean=True
        )
        buffer = PageBuffer(len(self.model.layers) << 25)
        for number, value in enumerate(self.state.values()):
            buffer.view[number << 25 : (number + 1) << 25] = memoryview(value.numpy()).cast("B")
        with self._checkpointer("sync") as saver:
            steps = iter(range(1, 1000))
            # By turns: the disk's own speed drifts within a minute.
            ours, floor = self._by_turns(
                ("keepstep save (digests, durable)", lambda: saver.save(next(steps))),
                (
                    "floor: raw O_DIRECT write + sync",
                    lambda: raw_direct_write(self.out / "raw", buffer, len(self.model.layers) << 25),
                ),
                clean=True,
            )
        self.ratios["durable_vs_dcp"] = ours / dcp_save
        self.ratios["durable_vs_floor"] = ours / floor

    @contextmanager
    def _checkpointer(self, mode: Any, **config: Any) -> Iterator[keepstep.Checkpointer]:
        settings = keepstep.CheckpointingConfig(save_dir=str(self.out / "run"), period_steps=1, mode=mode, **config)
        state = keepstep.JobState(model=self.model)
        with keepstep.Checkpointer(settings, state, handle_signals=False) as checkpointer:
            yield checkpointer

    def _asynchronous(self) -> None:
        training = Training()
        self._clean()
        theirs = median_of("dcp.async_save (thread)", peers.dcp_async(self.state, self.out, training, self.runs))
        self.saves["dcp.async_save"] = theirs
        other = None
        if peers.is_installed("torch_checkpointing"):
            saves = peers.torch_checkpointing_async(self.state, self.out, training, self.runs)
            other = self.saves["torch_checkpointing"] = median_of("torch_checkpointing (process)", saves)
        self._clean()
        with self._checkpointer("async", num_to_keep=1) as saver:
            saver.resume()
            steps = iter(range(1, 1000))
            saves = [asynchronous(training, lambda: _start(saver, next(steps))) for _ in range(self.runs)]
        ours = self.saves["keepstep async"] = median_of("keepstep async (digests, durable)", saves)
        # The copy is measured again: beside it, not minutes before.
        copy = self._time("floor: copy in warm memory, again", self._copy)
        self.ratios["stall_vs_copy"] = ours.stall / copy
        self.ratios["first_stall_vs_copy"] = saves[0].stall / copy
        self.ratios["lost_vs_dcp_async"] = ours.lost / theirs.lost
        if other is not None:
            self.ratios["lost_vs_torch_checkpointing"] = ours.lost / other.lost

    def _workers(self) -> None:
        """The stall when loader workers are forked anew between saves."""
        training = Training()
        self._clean()
        saves = []
        with self._checkpointer("async", num_to_keep=1) as saver:
            saver.resume()
            for step in range(1, self.runs + 1):
                workers = [multiprocessing.get_context("fork").Process(target=_idle) for _ in range(2)]
                for worker in workers:
                    worker.start()
                saves.append(asynchronous(training, lambda step=step: _start(saver, step)))
                for worker in workers:
                    worker.terminate()
                    worker.join()
        ours = median_of("  the same, workers forked anew", saves)
        copy = self._time("floor: copy in warm memory, again", self._copy)
        self.ratios["stall_with_workers_vs_copy"] = ours.stall / copy

    def _loads(self) -> None:
        self._clean()
        dcp.save({"m": self.state}, checkpoint_id=self.out / "dcp")
        with self._checkpointer("sync") as saver:
            saver.save(1)
        torch.save(self.state, self.out / "weights.pt")
        self._time("torch.load", lambda: torch.load(self.out / "weights.pt"))
        ours = {f"model.layers.{number}": value for number, value in enumerate(self.target.values())}
        plain = {"m": self.target}
        folder = self.out / "run" / "save-1"
        dcp.load(ours, checkpoint_id=folder)  # what was written past the cache is in it now
        with self._checkpointer("sync") as loader:
            load, same = self._by_turns(
                ("keepstep resume (every byte verified)", loader.resume),
                ("dcp.load of the same folder", lambda: dcp.load(ours, checkpoint_id=folder)),
            )
        foreign = self.out / "dcp"
        direct, plain_dcp = self._by_turns(
            ("keepstep.load_dcp of plain DCP's folder", lambda: keepstep.load_dcp(plain, foreign)),
            ("dcp.load of plain DCP's folder", lambda: dcp.load(plain, checkpoint_id=foreign)),
        )
        self.ratios["load_vs_dcp"] = same / load
        self.ratios["load_of_plain_dcp_folder_vs_dcp"] = plain_dcp / direct
        if peers.is_installed("torchsnapshot") and peers.is_installed("importlib_metadata"):
            self.rows += peers.torchsnapshot_rows(self.state, self.target, self.out, self.gib, self.runs)


def _start(saver: keepstep.Checkpointer, step: int) -> Callable[[], bool]:
    saver.save(step)
    return lambda: saver.is_idle


def _idle() -> None:
    time.sleep(3600)


def memory(gib: float, folder: Path, saves: int = 30) -> dict[str, float]:
    """Memory, threads and descriptors over many saves in the background, in a process of its own."""
    results: Any = multiprocessing.get_context("spawn").SimpleQueue()
    process = multiprocessing.get_context("spawn").Process(target=_saves, args=(gib, folder, saves, results))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the memory benchmark failed with {process.exitcode}")
    return results.get()  # type: ignore[no-any-return]


def _saves(gib: float, folder: Path, saves: int, results: Any) -> None:
    torch.set_num_threads(2)
    model = Weights(max(1, round(gib * 32)))
    state = sum(p.numel() * p.element_size() for p in model.parameters())
    config = keepstep.CheckpointingConfig(save_dir=str(folder / "memory"), period_steps=1, num_to_keep=1, mode="async")
    # What the first save brings in once and for all is no part of the state's cost.
    small = keepstep.CheckpointingConfig(save_dir=str(folder / "warm"), period_steps=1, mode="async")
    with keepstep.Checkpointer(small, keepstep.JobState(model=nn.Linear(2, 2)), handle_signals=False) as saver:
        saver.resume()
        saver.save(1)
    before = _usage()["rss"]
    after: list[dict[str, int]] = []
    with keepstep.Checkpointer(config, keepstep.JobState(model=model), handle_signals=False) as saver:
        saver.resume()
        for step in range(1, saves + 1):
            saver.save(step)
            saver.wait()
            after.append(_usage())
    third = after[min(2, len(after) - 1)]
    results.put(
        {
            "extra_memory": (max(one["peak"] for one in after) - before) / state,
            "memory_growth": (after[-1]["rss"] - third["rss"]) / state,
            "thread_growth": after[-1]["threads"] - third["threads"],
            "descriptor_growth": after[-1]["descriptors"] - third["descriptors"],
        }
    )


def _usage() -> dict[str, int]:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "rss": int(fields["VmRSS"].split()[0]) * 1024,
        "peak": int(fields["VmHWM"].split()[0]) * 1024,
        "threads": int(fields["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.5, help="size of the state")
    parser.add_argument("--runs", type=int, default=5, help="how often each thing is measured; the median counts")
    parser.add_argument("--dir", type=Path, help="scratch folder on the disk that counts")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(os.cpu_count() or 1)  # the training takes all cores
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="keepstep-bench-") as scratch:
        folder = Path(scratch)
        used = memory(min(options.gib, 1.0), folder)
        dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=0, world_size=1)
        bench = Bench(options.gib, folder, options.runs)
        bench.run()
        dist.destroy_process_group()
    bench.ratios |= used
    print("\n" + "\n".join(f"{name:34s} {value:8.3f}" for name, value in bench.ratios.items()))
    if options.json:
        result = {
            "gib": bench.gib,
            "machine": machine(),
            "seconds": {row.name: row.seconds for row in bench.rows},
            "asynchronous": {name: asdict(save) for name, save in bench.saves.items()},
            "ratios": bench.ratios,
        }
        with suppress(FileExistsError):
            options.json.parent.mkdir(parents=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
