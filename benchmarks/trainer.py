"""A save of the Hugging Face Trainer with keepstep, beside the plain Trainer's with every file synced, in one run.

python -m benchmarks.trainer --gib 1.5 --saves 5 --dir /scratch --json result.json

Each kind has a trainer of its own, in turns. "stall" is what a save takes out of `train()`; the plain Trainer does not
sync, so a second row has its time with an fsync of every file, which is what keepstep includes in its saves.
"""

import argparse
import contextlib
import json
import logging
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from benchmarks.measure import machine
from keepstep.integrations.hugging_face import make_resumable

KINDS = ("plain", "plain, synced", "keepstep, synchronous", "keepstep, asynchronous")


class Layers(torch.nn.Module):
    """So many parameters in layers of 4 MiB; one of them is used."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(1024, 1024, bias=False) for _ in range(max(1, parameters >> 20))
        )

    def forward(self, x: Any = None, labels: Any = None, **more: Any) -> dict[str, Any]:
        # All get a gradient, so that all have moments; the products are small.
        loss = sum(layer.weight[0, :4].square().sum() for layer in self.layers) + self.layers[0](x).square().mean()
        return {"loss": loss}


class Timed(Trainer):
    """Times its saves."""

    def __init__(self, *, kind: str, **more: Any) -> None:
        super().__init__(**more)
        self.kind, self.stalls, self.ends = kind, list[float](), list[float]()

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        start = time.perf_counter()
        super()._save_checkpoint(model, trial)
        if self.kind == "plain, synced":
            _sync(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}")
        self.stalls.append(time.perf_counter() - start)
        session = getattr(self, "_keepstep_session", None)
        if session is not None:
            session._saves.wait()
        self.ends.append(time.perf_counter() - start)


def _sync(folder: Path) -> None:
    for path in [*folder.iterdir(), folder, folder.parent]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _trainer(kind: str, folder: Path, model: Layers, saves: int) -> Timed:
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=saves + 1,
        save_steps=1,
        save_total_limit=1,
        per_device_train_batch_size=1,
        use_cpu=True,
        report_to=[],
        logging_steps=1000,
        disable_tqdm=True,
        max_grad_norm=0.0,
    )
    data = [{"x": torch.ones(1024), "labels": torch.tensor(0)}] * (saves + 1)
    trainer = Timed(kind=kind, model=model, args=args, train_dataset=data)
    if kind.startswith("keepstep"):
        make_resumable(trainer, mode="async" if "async" in kind else "sync", handle_signals=False)
    return trainer


@contextlib.contextmanager
def _scratch(base: str | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="keepstep-trainer-", dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(gib: float, saves: int, base: str | None) -> dict[str, dict[str, list[float]]]:
    """Seconds of each save, first ones left out (they touch memory and write new files).

    Args:
        gib: bytes of model and moments, in GiB.
        saves: of each kind.
        base: where to write; the system's temporary folder by default.
    """
    parameters = int(gib * (1 << 30) / 12)
    found: dict[str, dict[str, list[float]]] = {kind: {"stall": [], "written": []} for kind in KINDS}
    # One turn of each kind after the other: what the machine does meanwhile hits all of them.
    for turn in range(2):
        for kind in KINDS if turn % 2 == 0 else KINDS[::-1]:
            with _scratch(base) as folder:
                trainer = _trainer(kind, folder / "run", Layers(parameters), saves)
                trainer.train()
                found[kind]["stall"] += trainer.stalls[1:]
                found[kind]["written"] += trainer.ends[1:]
                del trainer
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.5)
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--dir")
    parser.add_argument("--json")
    options = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    found = measure(options.gib, options.saves, options.dir)
    floor = statistics.median(found["plain, synced"]["stall"])
    print(f"{options.gib} GiB of weights and moments; {machine()}")
    print(f"{'':24} {'stall':>9} {'of plain, synced':>17} {'until committed':>16}")
    for kind, seconds in found.items():
        stall, written = (statistics.median(seconds[name]) for name in ("stall", "written"))
        print(f"{kind:24} {stall:8.3f}s {stall / floor:17.2f} {written:15.3f}s")
    if options.json:
        Path(options.json).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
