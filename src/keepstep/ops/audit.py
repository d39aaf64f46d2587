"""Says from a run's ledger which samples each epoch has missed or seen twice."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from keepstep.errors import CheckpointNotFoundError, CouldNotLookError
from keepstep.storage.ledger import LedgerFormatError, ledger_folder, read_length, read_rows

_SHOWN = 20


@dataclass(frozen=True)
class AuditedEpoch:
    """One epoch: how many samples were consumed, and the first of those missed and of those seen more than once.

    In an epoch that is not over, what has not come yet is not missed.
    """

    epoch: int
    over: bool
    consumed: int
    missed: int
    repeated: int
    first_missed: tuple[int, ...]
    first_repeated: tuple[int, ...]


@dataclass(frozen=True)
class Audit:
    """A run's ledger. `gaps` counts places in the stream of samples that no rank has read, or more than one."""

    run: str
    steps: int
    samples: int
    length: int
    gaps: int
    epochs: tuple[AuditedEpoch, ...]

    @property
    def exact(self) -> bool:
        """Whether every sample came once in each epoch."""
        return not self.gaps and not any(epoch.missed or epoch.repeated for epoch in self.epochs)


def audit(run: Path) -> Audit:
    """Read the ledger of a run.

    Raises:
        CheckpointNotFoundError: the run has none; `trainer.data.ledger: true` switches it on.
        CouldNotLookError: a file of it is no ledger.
    """
    files = sorted(ledger_folder(run).glob("rank_*.bin"))
    if not files:
        raise CheckpointNotFoundError(f"{run}: no ledger there; trainer.data.ledger: true keeps one")
    try:
        lengths = {read_length(file) for file in files}
        rows = [row for file in files for row in read_rows(file)]
    except (OSError, LedgerFormatError) as error:
        raise CouldNotLookError(str(error)) from error
    if len(lengths) > 1:
        raise CouldNotLookError(f"{run}: the ledger speaks of data sets of different lengths: {sorted(lengths)}")
    length = lengths.pop()
    places = [np.arange(row.position, row.position + len(row.indices)) for row in rows]
    positions = np.concatenate([np.empty(0, dtype=np.int64), *places])
    indices = np.concatenate([np.empty(0, dtype=np.uint32), *(row.indices for row in rows)])
    end = int(positions.max(initial=-1)) + 1
    gaps = int((np.bincount(positions, minlength=end) != 1).sum())
    epochs = positions // length
    over = [(epoch, (epoch + 1) * length <= end) for epoch in range(-(-end // length))]
    audited = tuple(_audit_epoch(epoch, indices[epochs == epoch], length, done) for epoch, done in over)
    return Audit(str(run), max((row.step for row in rows), default=0), end, length, gaps, audited)


def _audit_epoch(epoch: int, indices: npt.NDArray[np.uint32], length: int, over: bool) -> AuditedEpoch:
    counts = np.bincount(indices, minlength=length)
    missed = np.flatnonzero(counts[:length] == 0) if over else np.empty(0, dtype=np.int64)
    repeated = np.flatnonzero(counts > 1)
    return AuditedEpoch(
        epoch=epoch,
        over=over,
        consumed=len(indices),
        missed=len(missed),
        repeated=len(repeated),
        first_missed=tuple(missed[:_SHOWN].tolist()),
        first_repeated=tuple(repeated[:_SHOWN].tolist()),
    )
