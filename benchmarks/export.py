"""`keepstep export` of a checkpoint, beside a raw copy of its bytes and beside what else PyTorch has for it.

python -m benchmarks.export --gib 3 --dir /scratch --json result.json

Each runs in a process of its own; its seconds are those of the work, without the imports. All write to the disk and
sync, and all sources are in the cache where memory allows. Peak memory is the largest resident set of the process less
that of one which only imports.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import keepstep
from benchmarks.checkpoint import Weights
from benchmarks.measure import Row, machine

_MIB = 1 << 20
# What each process does: the time of `work` is taken. `dcp_to_torch_save` reads all keys, as it has no choice.
_HEAD = """
import json, os, sys, time
import torch
import keepstep.export.weights
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
source, target = sys.argv[1:3]
def synced(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
"""
_TAIL = """
start = time.perf_counter()
work()
seconds = time.perf_counter() - start
# Not of getrusage: that begins with what the parent had.
peak = next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM'))
print(json.dumps([seconds, peak * 1024]))
"""
_WORKS = {
    "only the imports": "def work(): pass",
    "raw copy of the shard files, synced": """
def work():
    os.mkdir(target)
    buffer = memoryview(bytearray(32 << 20))
    for name in sorted(os.listdir(source)):
        if name.endswith('.distcp'):
            with open(f'{source}/{name}', 'rb', 0) as old, open(f'{target}/{name}', 'wb', 0) as new:
                while count := old.readinto(buffer):
                    view = buffer[:count]
                    while view:
                        view = view[new.write(view):]
                os.fsync(new.fileno())
""",
    "keepstep export, one file": "def work(): keepstep.export_weights(source, target, max_shard_size=1 << 40)",
    "keepstep export, files of 500 MB": "def work(): keepstep.export_weights(source, target, max_shard_size=5 * 10**8)",
    "keepstep export, cast to bfloat16": "def work(): keepstep.export_weights(source, target, dtype='bfloat16')",
    "dcp_to_torch_save, then save_file, synced": """
def work():
    os.mkdir(target)
    dcp_to_torch_save(source, f'{target}/all.pt')
    state = torch.load(f'{target}/all.pt', mmap=True, weights_only=True)['model']
    flat, todo = {}, [('', state)]
    while todo:
        path, one = todo.pop()
        if isinstance(one, torch.Tensor):
            flat[path] = one
        else:
            todo += [(f'{path}.{k}' if path else str(k), v) for k, v in
                     (one.items() if isinstance(one, dict) else enumerate(one))]
    save_file(flat, f'{target}/model.safetensors', {'format': 'pt'})
    synced(f'{target}/model.safetensors')
""",
}


def save(folder: Path, gib: float) -> Path:
    """A checkpoint of so many GiB of weights in tensors of 32 MiB."""
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=1)
    state = keepstep.JobState(model=Weights(max(1, round(gib * 32))))
    with keepstep.Checkpointer(config, state, "run", handle_signals=False) as saver:
        saver.save(1)
    return folder / "run" / "save-1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=3, help="size of the checkpoint")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="where to work")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    rows = {name: Row(name, [], 0 if name.startswith("only") else options.gib) for name in _WORKS}
    peaks: dict[str, list[int]] = {name: [] for name in _WORKS}
    with tempfile.TemporaryDirectory(prefix="keepstep-bench-", dir=options.dir) as scratch:
        source, target = save(Path(scratch), options.gib), Path(scratch) / "out"
        for path in source.glob("*.distcp"):
            path.read_bytes()
        for _ in range(options.runs):  # by turns: the machine's speed drifts
            for name, work in _WORKS.items():
                shutil.rmtree(target, ignore_errors=True)
                os.sync()
                command = [sys.executable, "-c", _HEAD + work + _TAIL, str(source), str(target)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
                seconds, peak = json.loads(done.stdout)
                rows[name].seconds.append(seconds)
                peaks[name].append(peak)
    floor = min(peaks["only the imports"])
    figures = {name: {"seconds": rows[name].median, "mib": (max(peaks[name]) - floor) / _MIB} for name in _WORKS}
    for name, row in rows.items():
        print(f"{row.line()}  peak {figures[name]['mib']:6.0f} MiB")
    _, raw, single, *_, other = rows.values()
    ratios = {"speed_vs_raw_copy": raw.median / single.median, "times_as_fast_as_dcp": other.median / single.median}
    print("\n" + "\n".join(f"{name:28s} {value:.2f}" for name, value in ratios.items()))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "rows": figures, "ratios": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    main()
