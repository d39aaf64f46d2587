"""What planning costs: many entries on some ranks, and the main process of many ranks.

python -m benchmarks.planning --json result.json
"""

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import tempfile
import time
import warnings
from array import array
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.utils import _DistWrapper

import keepstep
from benchmarks.measure import machine
from keepstep.dcp.entries import Scope
from keepstep.dcp.fragments import MetadataParts, fragment_of
from keepstep.dcp.items import Item
from keepstep.dcp.shard import lay_out
from keepstep.dcp.writer import write_file
from keepstep.plan import layout
from keepstep.plan.manifest import FileRecord, Manifest, to_text
from keepstep.plan.sharing import Listing, assign
from keepstep.storage.digest import digest_of_bytes

SAVES = 10


def in_ranks(size: int, folder: Path, work: Callable[[int, Path], Any]) -> list[Any]:
    """Run `work(rank, folder)` on gloo ranks; what each returns."""
    context = multiprocessing.get_context("fork")
    results: Any = context.SimpleQueue()

    def run(rank: int) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)
        address = f"file://{folder / 'meeting'}"
        limit = timedelta(minutes=10)
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size, timeout=limit)
        results.put((rank, work(rank, folder)))
        dist.destroy_process_group()

    processes = [context.Process(target=run, args=(rank,)) for rank in range(size)]
    for process in processes:
        process.start()
    found = dict(results.get() for _ in processes)
    for process in processes:
        process.join()
    (folder / "meeting").unlink(missing_ok=True)
    return [found[rank] for rank in range(size)]


def many_entries(entries: int, ranks: int, folder: Path) -> dict[str, float]:
    """Saves 1, 2 and 10 of small tensors that all ranks hold, beside dcp.save's."""

    def work(rank: int, folder: Path) -> dict[str, list[float]]:
        torch.manual_seed(0)
        model = nn.ParameterList(nn.Parameter(torch.randn(16)) for _ in range(entries))
        state = {f"layers.{number}": value.detach() for number, value in enumerate(model)}
        planning: list[float] = []
        real = _DistWrapper.reduce_scatter

        def timed(self: Any, *arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return real(self, *arguments, **options)
            finally:
                planning.append(time.perf_counter() - start)

        _DistWrapper.reduce_scatter = timed
        theirs, ours = [], []
        for number in range(3):
            dist.barrier()
            start = time.perf_counter()
            dcp.save({"m": state}, checkpoint_id=folder / f"dcp-{number}")
            theirs.append(time.perf_counter() - start)
        config = keepstep.CheckpointingConfig(save_dir=str(folder / "run"), period_steps=1, num_to_keep=1)
        with keepstep.Checkpointer(config, keepstep.JobState(model=model), handle_signals=False) as saver:
            for step in range(1, SAVES + 1):
                dist.barrier()
                start = time.perf_counter()
                saver.save(step)
                ours.append(time.perf_counter() - start)
        return {"dcp": theirs, "dcp_planning": planning, "ours": ours}

    found = in_ranks(ranks, folder, work)[0]
    lines = [json.loads(line) for line in (folder / "run" / "saves.jsonl").read_text().splitlines()]
    planning = [line["ranks"][0]["snapshot"] for line in lines]
    for name in ("dcp-0", "dcp-1", "dcp-2", "run"):
        shutil.rmtree(folder / name)
    print(f"{entries} entries on {ranks} ranks, seconds:")
    print(
        f"  dcp.save        1st {found['dcp'][0]:.2f}  2nd {found['dcp'][1]:.2f}  planning 1st "
        f"{found['dcp_planning'][0]:.2f}  2nd {found['dcp_planning'][1]:.2f}"
    )
    print(
        f"  keepstep save   1st {found['ours'][0]:.2f}  2nd {found['ours'][1]:.2f}  10th {found['ours'][-1]:.2f}  "
        f"snapshot 1st {planning[0]:.2f}  2nd {planning[1]:.2f}  10th {planning[-1]:.2f}",
        flush=True,
    )
    return {
        "save_2_vs_dcp_2": found["ours"][1] / found["dcp"][1],
        "save_10_vs_dcp_2": found["ours"][-1] / found["dcp"][1],
        "dcp_planning_vs_snapshot_2": found["dcp_planning"][0] / planning[1],
        "dcp_planning_vs_snapshot_10": found["dcp_planning"][0] / planning[-1],
    }


def main_process(ranks: int, tensors: int, folder: Path, results: Any) -> None:
    """What the main process of so many ranks does at its first save and at the next, each rank with its own shards."""
    fragments, listings = [], []
    for rank in range(ranks):
        items = [
            Item(
                f"model.layers.{n // 10}.part{n % 10}.weight",
                Scope.EVERY_RANK,
                torch.float32,
                (ranks * 128, 256),
                (rank * 128, 0),
                (128, 256),
            )
            for n in range(tensors)
        ]
        listings.append(Listing(b"".join(item.place for item in items), array("q", [item.size for item in items])))
        fragments.append(fragment_of(lay_out(rank, items, {}, {})))
    files = {
        name: FileRecord(1 << 30, "0" * 32)
        for rank in range(ranks)
        for name in (layout.shard_name(rank), layout.index_name(rank))
    }
    seconds = {}
    start = time.perf_counter()
    assign(listings, [0] * ranks)
    seconds["plan"] = time.perf_counter() - start
    parts = MetadataParts()

    def commit(changed: list[Any]) -> float:
        start = time.perf_counter()
        for file in folder.iterdir():
            file.unlink()
        metadata = parts.update(changed)
        record = write_file(folder / layout.METADATA, metadata)
        manifest = Manifest(1, 1, ranks, ("model",), {**files, layout.METADATA: record})
        write_file(folder / layout.MANIFEST, to_text(manifest, digest_of_bytes).encode())
        return time.perf_counter() - start

    seconds["first commit"] = commit(fragments)
    seconds["next commit"] = commit([None] * ranks)
    size = (folder / layout.METADATA).stat().st_size
    results.put({**seconds, "metadata": size, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})


def simulated(ranks: int, tensors: int, folder: Path) -> dict[str, float]:
    """The same in a process of its own."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.SimpleQueue()
    folder.mkdir()
    process = context.Process(target=main_process, args=(ranks, tensors, folder, results))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the simulation of {ranks} ranks failed with {process.exitcode}")
    found: dict[str, float] = results.get()
    shutil.rmtree(folder)
    print(
        f"main process of {ranks:5d} ranks x {tensors} tensors: plan {found['plan']:.2f} s  first commit "
        f"{found['first commit']:.2f} s  next {found['next commit']:.2f} s  .metadata {found['metadata'] / 2**20:.0f} "
        f"MiB  peak {found['peak'] / 2**30:.2f} GiB",
        flush=True,
    )
    return found


def small_tensors(count: int, folder: Path) -> dict[str, float]:
    """Many tensors of 1 KiB: save and load beside dcp's."""
    torch.manual_seed(0)
    model = nn.ParameterList(nn.Parameter(torch.randn(256)) for _ in range(count))
    state = {f"layers.{number}": value.detach() for number, value in enumerate(model)}

    def took(work: Callable[[], Any]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    save = took(lambda: dcp.save({"m": state}, checkpoint_id=folder / "dcp", no_dist=True))
    load = took(lambda: dcp.load({"m": state}, checkpoint_id=folder / "dcp", no_dist=True))
    direct = took(lambda: keepstep.load_dcp({"m": state}, folder / "dcp"))
    config = keepstep.CheckpointingConfig(save_dir=str(folder / "run"), period_steps=1, num_to_keep=1)
    with keepstep.Checkpointer(config, keepstep.JobState(model=model), handle_signals=False) as saver:
        first = took(lambda: saver.save(1))
        second = took(lambda: saver.save(2))
        descriptors = len(os.listdir("/proc/self/fd"))
        back = took(lambda: saver.resume())
    shutil.rmtree(folder / "dcp")
    shutil.rmtree(folder / "run")
    print(
        f"{count} tensors of 1 KiB: dcp.save {save:.2f} s, dcp.load {load:.2f} s; keepstep save {first:.2f} s, the "
        f"next {second:.2f} s, resume {back:.2f} s, load_dcp of dcp's folder {direct:.2f} s",
        flush=True,
    )
    return {
        "small_save_vs_dcp": save / first,
        "small_next_save_vs_dcp": save / second,
        "small_load_vs_dcp": load / back,
        "small_load_dcp_vs_dcp": load / direct,
        "small_descriptors": descriptors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="scratch folder on the disk that counts")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="keepstep-bench-") as scratch:
        folder = Path(scratch)
        ratios = many_entries(20_000, 4, folder) | small_tensors(100_000, folder)
        sizes = {ranks: simulated(ranks, 2000, folder / "main") for ranks in (64, 256, 1024)}
    largest = sizes[1024]
    ratios["main_process_growth_64_to_1024"] = (largest["plan"] + largest["first commit"]) / (
        sizes[64]["plan"] + sizes[64]["first commit"]
    )
    print("\n" + "\n".join(f"{name:34s} {value:8.2f}" for name, value in ratios.items()))
    if options.json:
        result = {"machine": machine(), "ratios": ratios, "simulated": sizes}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
