"""The logs of a run's folder, read once: a later look reads what was appended."""

from pathlib import Path
from typing import Any

from keepstep.ops.report.rows import FollowedFile
from keepstep.plan.report.facts import Row
from keepstep.plan.report.logged import Logged
from keepstep.plan.report.saves import without_ranks
from keepstep.provenance.secrets import masked_text
from keepstep.storage.save_log import NAME as SAVES

METRICS = "metrics.jsonl"
# What single ranks spent is held of so many in the newest saves; of earlier saves what all ranks spent together.
_MOST_RANKS = 50_000


class SaveRows:
    """Rows of `saves.jsonl`, without passwords."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._detailed = self._ranks = 0

    def add(self, row: dict[str, Any]) -> None:
        """Note a row, and forget the ranks of the earliest where there are too many."""
        self.rows.append(masked(row))
        self._ranks += _ranks_in(row)
        while self._ranks > _MOST_RANKS and self._detailed < len(self.rows) - 1:
            self._ranks -= _ranks_in(self.rows[self._detailed])
            self.rows[self._detailed] = without_ranks(self.rows[self._detailed])
            self._detailed += 1


class RunLogs:
    """What trackers and saves write into a run's folder."""

    def __init__(self, folder: Path) -> None:
        self.saves = FollowedFile(folder / SAVES, SaveRows)
        self.metrics = FollowedFile(folder / METRICS, Logged)


def masked(row: dict[str, Any]) -> dict[str, Any]:
    """Texts of a row without passwords: a report is sent around."""
    return {name: masked_text(value) if isinstance(value, str) else value for name, value in row.items()}


def _ranks_in(row: Row) -> int:
    ranks = row.get("ranks")
    return len(ranks) if isinstance(ranks, list) else 0
