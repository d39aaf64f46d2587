"""What a user's providers return, as small protocols. Each provider is a function of a `JobContext`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from keepstep.config.job import JobConfig


@dataclass(frozen=True)
class JobContext:
    """What a provider is given.

    Attributes:
        config: the whole configuration of the job.
        device: this rank's device.
        rank, world_size: this rank's place.
        data_rank, data_ranks: its place among the ranks that read different samples; what a stream is divided by.
    """

    config: JobConfig
    device: torch.device
    rank: int
    world_size: int
    data_rank: int = 0
    data_ranks: int = 1


class MapDataset(Protocol):
    """A map-style data set. A `collate(samples)` method, if there is one, makes a batch."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class TrainTask(Protocol):
    """What is learnt. May have `state_dict` and `load_state_dict`; then its state is saved."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """The mean loss over the samples of one micro-batch, as a scalar to differentiate."""


class PipelineTask(Protocol):
    """What is learnt through a pipeline, where no rank has the whole model: the task gives the two ends."""

    def inputs(self, batch: Any) -> Sequence[torch.Tensor]:
        """The tensors of one micro-batch that the first stage is called with; samples are their first dimension."""

    def target(self, batch: Any) -> torch.Tensor:
        """What the last stage's output is compared with; samples are its first dimension."""

    def output_loss(self, output: Any, target: torch.Tensor) -> torch.Tensor:
        """The mean loss over the samples of one micro-batch."""


class InferenceTask(Protocol):
    """What is computed. Must have `state_dict` and `load_state_dict`: what it collected is saved with the position.

    Where the job has `outputs`, `predict` is enough.
    """

    def predict(self, model: nn.Module, batch: Any) -> Any:
        """One plain Python result for each sample of one micro-batch, in order.

        For `outputs` each is a mapping; or all together are a mapping of columns, or an Arrow record batch.
        """

    def collect(self, results: Sequence[Any]) -> None:
        """Take the results of one global batch, in input order. Called on every rank with the same results."""

    def result(self) -> str:
        """The text of the output file, when all samples are done."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class LRScheduler(Protocol):
    """A learning-rate scheduler, stepped once after each optimizer step."""

    def step(self) -> Any: ...

    def get_last_lr(self) -> Sequence[Any]: ...

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...
