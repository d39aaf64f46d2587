"""A task that takes its time, so that others can come in between."""

import time
from typing import Any

import torch
from torch import nn

from keepstep.job.protocols import JobContext
from tests.rig import jobs

SECONDS = 0.01


class Paced(jobs.Task):
    """Each micro-batch takes a moment more than it would; what is computed is the same."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(SECONDS)
        return super().loss(model, batch)


def task(context: JobContext) -> Paced:
    return Paced()
