"""How commands speak: facts to stdout, messages to stderr, errors in one line."""

import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from typing import Any

from keepstep.errors import (
    CheckpointNotFoundError,
    ConfigError,
    DamagedCheckpointError,
    KeepstepError,
    RankFailedError,
    RankLostError,
    ReplicaMismatchError,
    RunInUseError,
)
from keepstep.plan.sizes import readable_size

# Errors that all ranks raise together: the main process speaks for all.
_SAME_ON_ALL_RANKS = (
    CheckpointNotFoundError,
    ConfigError,
    DamagedCheckpointError,
    RankFailedError,
    ReplicaMismatchError,
    RunInUseError,
)


def report_error(error: KeepstepError) -> None:
    """Print an error to stderr, once for the whole job where all ranks have the same."""
    rank = int(os.environ.get("RANK", "0"))
    is_same = isinstance(error, _SAME_ON_ALL_RANKS) and not isinstance(error, RankLostError)
    if rank and (is_same or error.exit_code == 75):
        return
    who = f"keepstep (rank {rank})" if rank else "keepstep"
    if os.environ.get("KEEPSTEP_TRACEBACK"):
        traceback.print_exception(error)
    print(f"{who}: {error}", file=sys.stderr, flush=True)


def print_json(value: Any, **more: Any) -> None:
    """Print a result (a dataclass with further fields, a list of dataclasses, or a dict) as JSON."""
    if isinstance(value, dict):
        plain: Any = {**value, **more}
    else:
        plain = [asdict(one) for one in value] if isinstance(value, list) else {**asdict(value), **more}
    print(json.dumps(plain, indent=1, default=_value_of))


def _value_of(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    raise TypeError(f"a {type(value).__name__} cannot be printed as JSON")


def printable(value: object) -> str:
    """A value from a file as text that a terminal only shows: control characters are written out."""
    text = value if isinstance(value, str) else json.dumps(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def human_size(size: int | None) -> str:
    """Bytes in a readable unit."""
    return "-" if size is None else readable_size(size)


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Left-aligned columns."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [header, *rows]]
    return "\n".join(line.rstrip() for line in lines)
