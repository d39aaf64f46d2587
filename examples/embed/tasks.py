"""The model and the task of the example."""

from typing import Any

import minilm
from torch import Tensor, nn

from keepstep.job.protocols import JobContext


class Embed:
    """A row for each function: its vector. The job adds the id that the data set gives."""

    def predict(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Any]:
        return {"embedding": minilm.embed(model, batch)}


def model(context: JobContext) -> nn.Module:
    return minilm.model()


def embed(context: JobContext) -> Embed:
    return Embed()
