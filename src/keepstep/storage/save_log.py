"""`saves.jsonl`: one line for each save of a run, with what took how long on which rank."""

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

logger = logging.getLogger("keepstep")

NAME = "saves.jsonl"
# Bytes at the end that hold at least one line.
_TAIL = 4 * 1024 * 1024


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

    def failed(self, step: int, attempt: int, problem: str) -> None:
        """Note a save that failed, where the job goes on all the same."""
        self._append({"step": step, "attempt": attempt, "outcome": "failed", "problem": problem})

    def mirrored(self, step: int, attempt: int, address: str, size: int, seconds: float) -> None:
        """Note that a checkpoint is on a mirror: bytes, and seconds of the upload."""
        more = {"address": address, "bytes": size, "seconds": round(seconds, 3)}
        self._append({"step": step, "attempt": attempt, "outcome": "mirrored", **more})

    def not_mirrored(self, step: int | None, attempt: int, address: str, problem: str) -> None:
        """Note that an upload failed, or was given up; `step` is None where the mirror could not be asked at all."""
        more = {"address": address, "problem": problem}
        self._append({"step": step, "attempt": attempt, "outcome": "not mirrored", **more})

    def last_saved(self) -> dict[str, Any]:
        """The line of the last save; empty when there is none, or the file cannot be read."""
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                lines = file.read().split(b"\n")
        except OSError:
            return {}
        for line in reversed(lines):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict) and found.get("outcome") == "saved":
                return found
        return {}

    def skipped(self, step: int, attempt: int) -> None:
        """Note a save that was left out since one was under way."""
        self._append({"step": step, "attempt": attempt, "outcome": "skipped"})

    def _append(self, line: Mapping[str, Any]) -> None:
        try:
            text = json.dumps({"time": round(time.time(), 3), **line}, separators=(",", ":")) + "\n"
            with self._path.open("ab+") as file:
                if _is_torn(file):  # by a process that was killed: what it left is no part of this line
                    text = "\n" + text
                file.write(text.encode())
        except OSError as error:
            logger.warning("could not write %s: %s", self._path, error)


def _is_torn(file: BinaryIO) -> bool:
    size = os.fstat(file.fileno()).st_size
    if not size:
        return False
    file.seek(size - 1)
    return file.read(1) != b"\n"
