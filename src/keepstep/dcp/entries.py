"""The form in which state is written and read: named entries, each a tensor or a plain Python tree."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch


class Scope(Enum):
    """Whose value an entry is."""

    EVERY_RANK = "every rank holds the same value, or its shard of one DTensor"
    BUFFER = "every rank holds the same value, or, if they turn out to differ, each rank its own"
    ONE_RANK = "the key names the rank, no other rank has it"
    MAIN = "the main process's value counts"


@dataclass(frozen=True)
class Entry:
    """One thing to save: a tensor, or a tree of plain Python values (see `codec`).

    With `same_as` it is another name for what is saved under that key; it has no value of its own.
    """

    value: Any
    scope: Scope = Scope.EVERY_RANK
    same_as: str = ""


def rank_key(key: str, rank: int) -> str:
    """The key of a rank's own value of a buffer that differs between ranks; the first holder's stays under `key`."""
    return f"buffers.rank_{rank}.{key}"


@dataclass(frozen=True)
class Stored:
    """What a checkpoint says of one key: shape and dtype of a tensor; None and None for a Python tree.

    `names` are all keys under which this one thing is stored, if there are several.
    """

    shape: torch.Size | None = None
    dtype: torch.dtype | None = None
    names: frozenset[str] = frozenset()

    @property
    def is_tensor(self) -> bool:
        return self.shape is not None
