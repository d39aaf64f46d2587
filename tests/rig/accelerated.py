"""A loop with Accelerate: an MLP with dropout on 22 shuffled samples that are their own id."""

import os
from dataclasses import dataclass
from typing import Any

# Accelerate imports it late, for seconds: here it comes once, and not in each forked rank.
import datasets  # noqa: F401
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DataLoaderConfiguration, DistributedType, FullyShardedDataParallelPlugin, set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

from keepstep.integrations.accelerate import close, load_state, resumable, save_state
from keepstep.integrations.accelerate.attached import Attached
from tests.rig import forks


class Samples(Dataset[tuple[int, torch.Tensor]]):
    """22 is on purpose no multiple of a batch."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.linspace(-1, 1, 8) * (index + 1) / 22


class Counter:
    """Registered for checkpointing; its load draws random numbers, as careless code does."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        torch.rand(3)
        self.count = state["count"]


@dataclass(frozen=True)
class Loop:
    """Settings of one loop.

    Attributes:
        folder: the run's.
        loader: settings of Accelerate's loaders.
        period: saves come every so many steps.
        stop: saves and ends there.
    """

    folder: str
    total: int = 14
    period: int = 100
    keep: int | None = 2
    stop: int | None = None
    loader: tuple[tuple[str, bool], ...] = ()
    workers: int = 0
    fsdp: bool = False
    accumulate: int = 1
    mirror: Any = ()


def accelerator(job: Loop) -> Accelerator:
    for state in (GradientState, AcceleratorState, PartialState):
        state._reset_state() if state is not AcceleratorState else state._reset_state(True)
    if dist.is_initialized():
        # Asked for only; the ranks have met already.
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", LOCAL_WORLD_SIZE=os.environ["WORLD_SIZE"])
    made = Accelerator(
        cpu=True,
        dataloader_config=DataLoaderConfiguration(**dict(job.loader)),
        gradient_accumulation_steps=job.accumulate,
    )
    if job.fsdp:
        # Accelerate shards on accelerators only; its code does so on the CPU as well.
        made.state.distributed_type = DistributedType.FSDP
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        made.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
    # Ranks may be killed: they have met before.
    made._keepstep = Attached(forks.world)
    return made


def build(job: Loop) -> tuple[Accelerator, Any, Any, Any, Any, Counter]:
    made = accelerator(job)
    set_seed(7, device_specific=False)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    loader = DataLoader(Samples(), batch_size=2, shuffle=True, num_workers=job.workers)
    model, optimizer, scheduler, loader = made.prepare(model, optimizer, scheduler, loader)
    counter = Counter()
    made.register_for_checkpointing(counter)
    set_seed(7, device_specific=True)
    return made, model, optimizer, scheduler, loader, counter


def train(job: Loop) -> dict[str, Any]:
    """Run or resume; gives where it began, a row for each step, and the final weights."""
    made, model, optimizer, scheduler, loader, counter = build(job)
    batches = resumable(made, loader)
    start = load_state(made, job.folder, mirror=job.mirror)
    rows, stream = {}, batches.endless()
    for step in range(start + 1, job.total + 1):
        ids, features = next(stream)
        with made.accumulate(model):
            rate = scheduler.get_last_lr()[0]
            loss = model(features).square().mean()
            made.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        counter.count += len(ids)
        rows[step] = [batches.epoch, ids.tolist(), rate.hex(), loss.item().hex(), made.step]
        if step == job.stop or step % job.period == 0:
            save_state(made, job.folder, step, num_to_keep=job.keep)
        if step == job.stop:
            break
    close(made)
    return {"start": start, "rows": rows, "weights": weights(model), "count": counter.count}


def weights(model: nn.Module) -> dict[str, Any]:
    whole = {name: getattr(value, "full_tensor", lambda v=value: v)() for name, value in model.state_dict().items()}
    return {name: value.tolist() for name, value in whole.items()}
