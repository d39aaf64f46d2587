"""What was found in a run's folder: the input of a report, as it lay there."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keepstep.plan.fork import Fork
from keepstep.plan.lock import Claim
from keepstep.plan.report.series import Series
from keepstep.plan.scores import Measured

Row = Mapping[str, Any]

# Outcomes in `saves.jsonl`; any other is shown by its name.
SAVED, FAILED, SKIPPED, STARTED = "saved", "failed", "skipped", "started"
MIRRORED, NOT_MIRRORED = "mirrored", "not mirrored"
# How an attempt ended as it was meant to; one that crashed leaves no row.
ENDS = ("stopped", "finished")

_MOST = 1 << 53


@dataclass(frozen=True)
class CheckpointFact:
    """A checkpoint. `digest`: of its manifest; `created_at`: seconds since the epoch; what is not known is None."""

    step: int
    name: str
    condition: str
    problem: str = ""
    size: int | None = None
    world_size: int | None = None
    attempt: int | None = None
    parent_step: int | None = None
    created_at: float | None = None
    pinned: bool = False
    digest: str = ""


@dataclass(frozen=True)
class Moved:
    """A checkpoint that was taken out of the way. `place`: "quarantine" or "set aside"."""

    step: int
    attempt: int | None
    place: str
    why: str = ""


@dataclass(frozen=True)
class Facts:
    """All that is told of one run.

    Attributes:
        name: of the run.
        folder: where it lies.
        now: when it was looked at, in seconds since the epoch.
        checkpoints: oldest first.
        saves: rows of `saves.jsonl`, in the order in which they were written.
        logged: series of the tracker, or of a Trainer's history; `logged_step`: the newest step in its rows.
        scores: what is known of each checkpoint.
        trainer: the state of a Trainer; empty where there is none.
        records: by attempt, the run record of one of its checkpoints.
        exit: how the last attempt ended; empty where nothing says.
        claim, holder: whether somebody holds the folder, and who.
        origin: the checkpoint of another run that this one was begun from.
        forks: lines that were begun from this run.
        moved: checkpoints that were taken out of the way.
        leftovers: names of saves that did not end.
        total_steps: of the whole run.
        notes: what is missing, or could not be read.
    """

    name: str
    folder: str
    now: float = 0.0
    checkpoints: tuple[CheckpointFact, ...] = ()
    saves: tuple[Row, ...] = ()
    logged: tuple[Series, ...] = ()
    logged_step: int | None = None
    scores: tuple[Measured, ...] = ()
    trainer: Row = field(default_factory=dict)
    records: Mapping[int, Row] = field(default_factory=dict)
    exit: Row = field(default_factory=dict)
    claim: Claim = Claim.GONE
    holder: str = ""
    origin: str | None = None
    forks: tuple[Fork, ...] = ()
    moved: tuple[Moved, ...] = ()
    leftovers: tuple[str, ...] = ()
    total_steps: int | None = None
    notes: tuple[str, ...] = ()


def number(value: object) -> float | None:
    """A number of a row, NaN and infinities too; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def finite(value: object) -> float | None:
    """A number that one can reckon with; None for all else."""
    found = number(value)
    return found if found is not None and math.isfinite(found) else None


def seconds(value: object) -> float | None:
    """A duration; None for all else."""
    found = finite(value)
    return found if found is not None and found >= 0 else None


def whole(value: object) -> int | None:
    """A count: a step, an attempt, a size; None for all else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else None


def text(value: object) -> str:
    """A text of a row; empty for all else."""
    return value if isinstance(value, str) else ""
