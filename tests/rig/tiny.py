"""The tiny job: an MLP with dropout on 50 samples that are their own id, in a hand-written loop."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import default_collate

import keepstep
from keepstep.config.training import LRSchedulerConfig
from keepstep.data.loader import GlobalBatchLoader
from keepstep.job.determinism import seed_all
from keepstep.job.lr_schedule import PhaseLR
from keepstep.plan.batching import divide
from tests.rig import forks

SEED = 7
PHASES = {"phases": [{"percent": 10, "to": 1.0}, {"rest": True, "to": 0.0, "curve": "cosine"}]}


class Samples:
    """50 samples: (id, features). 50 is on purpose no multiple of a batch."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.linspace(-1, 1, 8) * (index + 1) / 50

    collate = staticmethod(default_collate)


class Counter:
    """A task with nested Python state and tensors in it."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {"count": 0, "last": [], "sum": torch.zeros(3)}

    def note(self, ids: list[int]) -> None:
        self.seen["count"] += len(ids)
        self.seen["last"].append(ids)
        del self.seen["last"][:-2]
        self.seen["sum"] += torch.tensor([1.0, float(sum(ids)), 0.5])

    def state_dict(self) -> dict[str, Any]:
        return self.seen

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state


@dataclass(frozen=True)
class Tiny:
    """Settings of one tiny job."""

    save_dir: str
    total: int = 10
    period: Any = 5
    keep: int | None = 2
    mode: Any = "sync"
    batch: int = 4
    log: str | None = None
    resume_step: int | None = None
    on_step: Callable[[int], None] | None = None
    mirror: Any = ()
    peer_copies: Any = 0
    minutes: float | None = None


def build(rank: int = 0, size: int = 1, batch: int = 4, total: int = 10) -> dict[str, Any]:
    """Model, optimizer, scheduler, loader and task of the tiny job."""
    seed_all(SEED)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    division = divide(batch, None, size)
    parts = {
        "model": model,
        "optimizer": optimizer,
        "lr_scheduler": PhaseLR(optimizer, LRSchedulerConfig.model_validate(PHASES), total),
        "data": GlobalBatchLoader(Samples(), division, rank, seed=SEED, shuffle=True),
        "task": Counter(),
    }
    seed_all(SEED, rank)
    return parts


def train(job: Tiny) -> dict[str, Any]:
    """Run or resume the tiny job on this rank. Returns the final state, and where it started."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    parts = build(rank, size, job.batch, job.total)
    config = keepstep.CheckpointingConfig(
        save_dir=job.save_dir,
        period_steps=job.period,
        period_minutes=job.minutes,
        num_to_keep=job.keep,
        mode=job.mode,
        mirror=job.mirror,
        peer_copies=job.peer_copies,
    )
    state = keepstep.JobState(**parts)
    checkpointer = keepstep.Checkpointer(config, state, run_name="tiny", total_steps=job.total, world=forks.world)
    model, optimizer, scheduler = parts["model"], parts["optimizer"], parts["lr_scheduler"]
    with checkpointer:
        start = checkpointer.resume(job.resume_step)
        batches = iter(parts["data"])
        for step in range(start + 1, job.total + 1):
            rate = scheduler.get_last_lr()[0]
            (micro,) = next(batches)
            loss = model(micro.data[1]).square().mean()
            loss.backward()
            _average_gradients(model, size)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            ids = [i for part in _gather(list(micro.indices), size) for i in part]
            parts["task"].note(ids)
            if job.log is not None:
                _log(job.log, rank, [step, ids, rate.hex(), loss.item().hex()])
            if job.on_step is not None:
                job.on_step(step)
            checkpointer.save_if_due(step)
            if checkpointer.stop_requested:
                raise keepstep.StopRequested(f"stopped at {step}")
    return {"start": start, **final_state(parts)}


def final_state(parts: dict[str, Any]) -> dict[str, Any]:
    """Everything that must be bit-identical, as plain values."""
    optimizer = parts["optimizer"]
    return {
        "model": {k: v.tolist() for k, v in parts["model"].state_dict().items()},
        "optimizer": [{k: v.tolist() for k, v in optimizer.state[p].items()} for p in parts["model"].parameters()],
        "lr": [group["lr"] for group in optimizer.param_groups],
        "scheduler": parts["lr_scheduler"].state_dict(),
        "position": parts["data"].position,
        "task": {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in parts["task"].seen.items()},
        "rng": torch.get_rng_state().tolist(),
    }


def read_log(path: str, size: int = 1) -> list[dict[int, list[Any]]]:
    """Each rank's rows by step. A step that ran twice must have logged the same row twice."""
    logs = []
    for rank in range(size):
        rows: dict[int, list[Any]] = {}
        file = Path(f"{path}.{rank}")
        for line in file.read_text().splitlines() if file.exists() else []:
            row = json.loads(line)
            assert rows.setdefault(row[0], row) == row, f"step {row[0]} ran differently: {rows[row[0]]} and {row}"
        logs.append(rows)
    return logs


def _log(path: str, rank: int, row: list[Any]) -> None:
    descriptor = os.open(f"{path}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, json.dumps(row).encode() + b"\n")
    os.close(descriptor)


def _average_gradients(model: nn.Module, size: int) -> None:
    if size > 1:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= size


def _gather(value: Any, size: int) -> list[Any]:
    if size == 1:
        return [value]
    values = [None] * size
    dist.all_gather_object(values, value)
    return values
