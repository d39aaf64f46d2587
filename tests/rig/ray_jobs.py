"""Jobs for Ray Train's workers. What is to happen in them stands in files, since Ray starts them and their successors.

A file `<signal>-<rank>-<step>` (SIGKILL-0-7) in a job's folder makes that rank send itself the signal there, once.
`hold-<step>` makes all ranks wait there until somebody takes the file away.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from keepstep.dist.world import current_world
from keepstep.job.protocols import JobContext
from tests.rig import forks, jobs, tiny

PERIOD = 4
_LONGEST_SECONDS = 60.0


def obey(folder: Path, step: int, run: Path) -> None:
    """Do what the folder says about this rank and this step, when the save before it is committed."""
    committed = run / f"save-{step // PERIOD * PERIOD}"
    for order in folder.glob(f"SIG*-{dist.get_rank()}-{step}"):
        _await(committed.is_dir)
        order.rename(order.with_name(f"done-{order.name}"))
        os.kill(os.getpid(), signal.Signals[order.name.split("-")[0]])
    hold = folder / f"hold-{step}"
    if hold.exists():
        (folder / f"held-{dist.get_rank()}").write_text(str(os.getpid()))
    _await(lambda: not hold.exists())


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LONGEST_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


class Task(jobs.Task):
    """That of the tiny jobs. With one micro-batch a step its count is the number of the step."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        loss = super().loss(model, batch)
        obey(self._folder, self.seen, self._folder / "checkpoints" / "run")
        return loss


def task(context: JobContext) -> Task:
    folder = Path(context.config.trainer.checkpointing.save_dir).parent
    (folder / "starts").open("a").write(f"{context.rank}/{context.world_size}\n")
    return Task(folder)


def own_loop(config: dict[str, Any]) -> dict[str, Any]:
    """The hand-written loop of the tiny job as a worker's function."""
    folder = Path(config["folder"])
    logging.getLogger("keepstep").setLevel(logging.INFO)
    logging.getLogger("keepstep").addHandler(logging.FileHandler(folder / f"messages-{dist.get_rank()}"))
    forks.world = current_world()
    job = tiny.Tiny(
        save_dir=str(folder / "runs"),
        total=12,
        period=PERIOD,
        mode=config["mode"],
        batch=8,
        log=str(folder / "log"),
        on_step=lambda step: obey(folder, step, folder / "runs" / "tiny"),
    )
    return tiny.train(job)
