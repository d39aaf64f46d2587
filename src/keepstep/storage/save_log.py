"""`saves.jsonl`: a line for each save, start and end of a run, with what took how long: docs/advise.md."""

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from keepstep.storage.plain import NotPlainError, open_plain

logger = logging.getLogger("keepstep")

NAME = "saves.jsonl"
# Bytes at the end that hold at least one line.
_TAIL = 4 * 1024 * 1024
# Bytes at the end that are read for what saves and failures cost: those of long ago say little.
_MOST = 64 * 1024 * 1024
# How the last field of a save's line begins.
_RANKS = b',"ranks":['


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
        work: Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        """Note a save. Returns the line.

        Args:
            step, attempt: which.
            mode: "sync" or "async".
            seconds: from the snapshot to the end; `commit_seconds` of them after the last rank had written.
            ranks: for each rank its host, bytes, and seconds of snapshot, write, sync and index.
            straggler: the rank that held the others up.
            work: what the job lost by this save and did since the one before, as of `checkpoint.work_log.Work`.
        """
        slowest = max(range(len(ranks)), key=lambda rank: float(ranks[rank]["write"]) + float(ranks[rank]["sync"]))
        return self._append(
            {
                "step": step,
                "attempt": attempt,
                "outcome": "saved",
                "mode": mode,
                "bytes": sum(int(rank["bytes"]) for rank in ranks),
                "seconds": round(seconds, 6),
                "commit_seconds": round(commit_seconds, 6),
                **_rounded(work or {}),
                "slowest_rank": slowest,
                "straggler": straggler,
                "ranks": [_rounded(rank) for rank in ranks],
            }
        )

    def started(self, step: int, attempt: int, seconds: float | None, world_size: int) -> None:
        """Note that an attempt is at work.

        Args:
            step: that it goes on from.
            attempt: its number.
            seconds: from the begin of the process to the end of its first step; None when it is not known.
            world_size: its ranks.
        """
        more = _rounded({"seconds": seconds, "world_size": world_size})
        self._append({"step": step, "attempt": attempt, "outcome": "started", **more})

    def ended(self, step: int, attempt: int, outcome: str, work: Mapping[str, float]) -> None:
        """Note that an attempt has ended as it was meant to: "stopped" or "finished". No line tells of a crash.

        `work`: what it did since its last save, as of `saved`.
        """
        self._append({"step": step, "attempt": attempt, "outcome": outcome, **_rounded(work)})

    def period_changed(self, step: int, attempt: int, before: int, now: int, reason: str) -> None:
        """Note that the steps between two saves are others from this step on."""
        more = {"from": before, "to": now, "reason": reason}
        self._append({"step": step, "attempt": attempt, "outcome": "period", **more})

    def rows(self) -> list[dict[str, Any]]:
        """All lines, or the last of a very long log, without what is told of single ranks. Torn lines are left out.

        Raises:
            OSError: the file cannot be read, or is no regular one. One that is not there has no lines.
        """
        try:
            with self._open() as file:
                begin = max(0, os.fstat(file.fileno()).st_size - _MOST)
                file.seek(begin)
                if begin:
                    file.readline()
                parsed = [_parsed(line) for line in file]
        except FileNotFoundError:
            return []
        return [row for row in parsed if row]

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
            with self._open() as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                lines = file.read().split(b"\n")
        except OSError:
            return {}
        for line in reversed(lines):
            if b'"saved"' in line and (found := _parsed(line, whole=True)).get("outcome") == "saved":
                return found
        return {}

    def _open(self) -> BinaryIO:
        try:
            return os.fdopen(open_plain(self._path), "rb")
        except NotPlainError as error:
            raise OSError(f"{self._path}: {error}") from None

    def skipped(self, step: int, attempt: int) -> None:
        """Note a save that was left out since one was under way."""
        self._append({"step": step, "attempt": attempt, "outcome": "skipped"})

    def _append(self, line: Mapping[str, Any]) -> dict[str, Any]:
        row = {"time": round(time.time(), 3), **line}
        try:
            text = json.dumps(row, separators=(",", ":")) + "\n"
            with self._path.open("ab+") as file:
                if _is_torn(file):  # by a process that was killed: what it left is no part of this line
                    text = "\n" + text
                file.write(text.encode())
        except OSError as error:
            logger.warning("could not write %s: %s", self._path, error)
        return row


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()}


def _parsed(line: bytes, *, whole: bool = False) -> dict[str, Any]:
    """A line as a dict, without its `ranks` unless `whole`; empty where it is none."""
    # A thousand ranks take most of a line, and of the time to parse it. What begins so is no part of a text: in texts
    # quotes are escaped.
    head, begin, _ = line.partition(_RANKS)
    if begin and not whole and line.rstrip().endswith(b"}]}"):
        line = head + b"}"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(row, dict):
        return {}
    if not whole:
        row.pop("ranks", None)
    return row


def _is_torn(file: BinaryIO) -> bool:
    size = os.fstat(file.fileno()).st_size
    if not size:
        return False
    file.seek(size - 1)
    return file.read(1) != b"\n"
