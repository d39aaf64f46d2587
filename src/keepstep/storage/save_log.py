"""`saves.jsonl`: one line for each save of a run, with what took how long on which rank."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger("keepstep")

NAME = "saves.jsonl"


class SaveLog:
    """Appends to a run's log of saves. It is told of, not relied on: a line that cannot be written is a warning.

    Args:
        folder: the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def saved(
        self,
        *,
        step: int,
        attempt: int,
        mode: str,
        seconds: float,
        commit_seconds: float,
        ranks: Sequence[Mapping[str, Any]],
        straggler: int | None,
    ) -> None:
        """Note a save.

        Args:
            step, attempt: which.
            mode: "sync" or "async".
            seconds: from the snapshot to the end; `commit_seconds` of them after the last rank had written.
            ranks: for each rank its host, bytes, and seconds of snapshot, write, sync and index.
            straggler: the rank that held the others up.
        """
        slowest = max(range(len(ranks)), key=lambda rank: float(ranks[rank]["write"]) + float(ranks[rank]["sync"]))
        self._append(
            {
                "step": step,
                "attempt": attempt,
                "outcome": "saved",
                "mode": mode,
                "bytes": sum(int(rank["bytes"]) for rank in ranks),
                "seconds": round(seconds, 6),
                "commit_seconds": round(commit_seconds, 6),
                "slowest_rank": slowest,
                "straggler": straggler,
                "ranks": [
                    {name: round(value, 6) if isinstance(value, float) else value for name, value in rank.items()}
                    for rank in ranks
                ],
            }
        )

    def skipped(self, step: int, attempt: int) -> None:
        """Note a save that was left out since one was under way."""
        self._append({"step": step, "attempt": attempt, "outcome": "skipped"})

    def _append(self, line: Mapping[str, Any]) -> None:
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"time": round(time.time(), 3), **line}, separators=(",", ":")) + "\n")
        except OSError as error:
            logger.warning("could not write %s: %s", self._path, error)
