"""What the example learns (the next byte) and what it measures (bits per byte of held-out files)."""

import json
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from keepstep.job.protocols import JobContext


class NextByte:
    """The mean cross entropy of the next byte."""

    def loss(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        logits = model(batch[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


class BitsPerByte:
    """Bits per byte of each file, read in windows that do not overlap. Its state is what it has measured."""

    def __init__(self, context: int) -> None:
        self._context = context
        self._rows: list[dict[str, Any]] = []

    def predict(self, model: nn.Module, batch: list[tuple[str, bytes]]) -> list[dict[str, Any]]:
        return [{"file": name, "bytes": len(data), "bits_per_byte": self._bits(model, data)} for name, data in batch]

    def _bits(self, model: nn.Module, data: bytes) -> float:
        # A line break stands before the file, so that its first byte is predicted too.
        text = torch.tensor([10, *data])
        total = 0.0
        length = self._context
        targets = [text[i + 1 : i + 1 + length] for i in range(0, len(data), length)]
        inputs = [text[i : i + len(target)] for i, target in zip(range(0, len(data), length), targets, strict=True)]
        for begin in range(0, len(inputs), 64):
            tokens = nn.utils.rnn.pad_sequence(inputs[begin : begin + 64], batch_first=True)
            expected = nn.utils.rnn.pad_sequence(targets[begin : begin + 64], batch_first=True, padding_value=-100)
            total += F.cross_entropy(model(tokens).flatten(0, 1), expected.flatten(), reduction="sum").item()
        return total / math.log(2) / max(1, len(data))

    def collect(self, results: Sequence[dict[str, Any]]) -> None:
        self._rows += results

    def result(self) -> str:
        return "".join(json.dumps(row) + "\n" for row in self._rows)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows = state["rows"]


def next_byte(context: JobContext) -> NextByte:
    """The training task."""
    return NextByte()


def bits_per_byte(context: JobContext) -> BitsPerByte:
    """The inference task for the example's model."""
    return BitsPerByte(80)


def bits_per_byte_small(context: JobContext) -> BitsPerByte:
    """The inference task for the model in a size for tests."""
    return BitsPerByte(32)
