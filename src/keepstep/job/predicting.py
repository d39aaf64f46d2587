"""Passes of an inference job whose rows go to a sink; a sample that cannot be predicted is noted, if that is wanted."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from keepstep.config.outputs import OutputsConfig
from keepstep.data.device import to_device
from keepstep.data.loader import GlobalBatchLoader, MicroBatch
from keepstep.errors import KeepstepError
from keepstep.job.rows import rows_of
from keepstep.job.sink import OutputSink

logger = logging.getLogger("keepstep")

# The place of a sample in the global batch, and its result.
Placed = tuple[int, Any]

# These tell of the machine or of the other ranks, and nothing of a sample.
_NOT_OF_A_ROW = (
    KeepstepError,
    MemoryError,
    torch.OutOfMemoryError,
    torch.AcceleratorError,
    torch.distributed.DistError,
)
_LONGEST = 2000


class Predictor:
    """Makes the passes of one rank and hands their rows to its sink.

    Args:
        task, model: of the job.
        loader: reads single samples again.
        device: of the model.
        without_gradients: entered around each pass.
        config: of the outputs.
        sink: takes the rows.
    """

    def __init__(
        self,
        task: Any,
        model: nn.Module,
        loader: GlobalBatchLoader,
        device: torch.device,
        without_gradients: Callable[[], AbstractContextManager[Any]],
        config: OutputsConfig,
        sink: OutputSink,
    ) -> None:
        self._task, self._model, self._loader, self._device = task, model, loader, device
        self._without_gradients = without_gradients
        self._config, self._sink = config, sink
        self._id_of: Callable[[int], Any] | None = getattr(loader.dataset, "id_of", None)

    def take(self, micro: MicroBatch) -> list[Placed]:
        """Make a pass and hand over its rows. Returns them with their places."""
        if self._config.on_error == "stop":
            return self._make(micro)
        if micro.samples:
            return self._make_or_note(micro)
        return []

    def _make(self, micro: MicroBatch) -> list[Placed]:
        with self._without_gradients():
            results = self._task.predict(self._model, to_device(micro.data, self._device))
        own = micro.indices[: micro.samples]
        ids = own if self._id_of is None else [self._id_of(position) for position in own]
        rows = list(rows_of(results, micro.samples))
        self._sink.add(own, rows, ids)
        self._sink.relieve()
        return list(zip(micro.places[: micro.samples], rows, strict=True))

    def _make_or_note(self, micro: MicroBatch) -> list[Placed]:
        if micro.is_whole:
            rows, problem = self._tried(lambda: self._make(micro))
            if problem is None:
                return rows
        # Read and tried alone, only the sample fails that is at fault.
        own = list(zip(micro.indices, micro.places, strict=True))[: micro.samples]
        return [placed for position, place in own for placed in self._one_or_note(position, place)]

    def _one_or_note(self, position: int, place: int) -> list[Placed]:
        rows, problem = self._tried(lambda: self._make(self._loader.single(position, place)))
        if problem is not None:
            self._note(position, problem)
        return rows

    def _tried(self, make: Callable[[], list[Placed]]) -> tuple[list[Placed], Exception | None]:
        problem: Exception | None = None
        for _ in range(1 + self._config.tries):
            try:
                return make(), None
            except _NOT_OF_A_ROW:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a task or a data set raises for a sample is noted
                problem = error
        return [], problem

    def _note(self, position: int, problem: Exception) -> None:
        name, text = type(problem).__name__, str(problem)[:_LONGEST]
        logger.warning("sample %d failed and is noted: %s: %s", position, name, text)
        id = position if self._id_of is None else self._id_of(position)
        row = {"id": id, "position": position, "error": name, "message": text}
        self._sink.add_error(position, row)
