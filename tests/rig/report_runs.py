"""Folders of long runs for reports, written in a moment: right in form, with made-up content."""

import json
import math
from pathlib import Path
from typing import Any

from keepstep.plan import layout
from keepstep.plan.manifest import FileRecord, Manifest, to_text
from keepstep.plan.scores import FILE, SCORED, Score, to_line
from keepstep.storage.candidates import digest_of
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.survey import inspect

BEGAN = 1_767_225_600.0
_STEP_SECONDS = 0.4


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def commit(run: Path, step: int, *, attempt: int = 1, size: int = 1000, **record: Any) -> Path:
    """A committed checkpoint whose one file of `size` bytes takes no room."""
    folder = run / layout.checkpoint_name(step)
    folder.mkdir(parents=True)
    text = json.dumps({"step": step, "attempt": attempt, "run": run.name, **record}).encode()
    (folder / layout.RUN_RECORD).write_bytes(text)
    with (folder / layout.shard_name(0)).open("wb") as file:
        file.truncate(size)
    files = {
        layout.RUN_RECORD: FileRecord(len(text), digest_of_bytes(text)),
        layout.shard_name(0): FileRecord(size, "0"),
    }
    (folder / layout.MANIFEST).write_text(to_text(Manifest(step, attempt, 1, ("model",), files), digest_of_bytes))
    return folder


def saved(step: int, attempt: int, *, time: float | None = None, ranks: int = 1, **more: Any) -> dict[str, Any]:
    """A row of `saves.jsonl` of a committed save."""
    costs = [
        {
            "host": f"node-{rank // 8}",
            "bytes": 500_000,
            "snapshot": 0.02,
            "write": 0.3 + 0.01 * rank,
            "sync": 0.05,
            "index": 0.01,
        }
        for rank in range(ranks)
    ]
    wave = 0.1 * math.sin(step)
    return {
        "time": BEGAN + _STEP_SECONDS * step + 60 * attempt if time is None else time,
        "step": step,
        "attempt": attempt,
        "outcome": "saved",
        "mode": "sync",
        "bytes": 500_000 * ranks,
        "seconds": round(0.6 + wave, 4),
        "commit_seconds": 0.05,
        "slowest_rank": ranks - 1,
        "straggler": None,
        "ranks": costs,
        **more,
    }


def long_run(run: Path, *, steps: int = 10_000, checkpoints: int = 200, attempts: int = 5, ranks: int = 8) -> Path:
    """A run with all that a report tells of: losses, scores, failed saves, resumes, a mirror, a fork."""
    run.mkdir(parents=True)
    every, share = steps // checkpoints, checkpoints // attempts
    rows: list[dict[str, Any]] = []
    scores: list[str] = []
    for number in range(1, checkpoints + 1):
        step, attempt = number * every, min(attempts, 1 + (number - 1) // share)
        if attempt > 1 and (number - 1) % share == 0:
            # What the attempt before has saved beyond the step that this one goes on from.
            rows.append(saved(step, attempt - 1, ranks=ranks))
        if (number - 1) % share == 0:
            time = BEGAN + _STEP_SECONDS * (step - every + 1) + 60 * attempt
            start = {"time": time, "step": step - every, "attempt": attempt, "outcome": "started", "seconds": 20.0}
            rows.append(start)
        rows.append(saved(step, attempt, ranks=ranks))
        if number % 37 == 0:
            time = rows[-1]["time"] + 1
            problem = "rank 3: no space left on device"
            rows.append({"time": time, "step": step + 5, "attempt": attempt, "outcome": "failed", "problem": problem})
        if number % 4 == 0:
            address = "s3://bucket/runs/long"
            time = rows[-1]["time"] + 2
            rows.append(
                {
                    "time": time,
                    "step": step,
                    "attempt": attempt,
                    "outcome": "mirrored",
                    "address": address,
                    "bytes": 4_000_000,
                    "seconds": 1.5,
                }
            )
        config = {"trainer": {"total_steps": steps, "optimizer": {"lr": 0.001 if attempt < 3 else 0.0005}}}
        checkpoint = commit(
            run,
            step,
            attempt=attempt,
            size=4_000_000 + 100 * number,
            parent_step=step - every if number > 1 else None,
            created_at="2026-01-01T00:00:00Z",
            torch="2.13.0" if attempt < 4 else "2.14.0",
            world_size=ranks,
            seed=0,
            config=config,
        )
        scores.append(to_line(_score(step, number, checkpoints, digest_of(inspect(checkpoint, step)))))
    lines(run / "saves.jsonl", rows)
    lines(run / "metrics.jsonl", [_logged(step, steps) for step in range(1, steps + 1)])
    (run / FILE).write_text("".join(f"{line}\n" for line in scores))
    forks = run / layout.KEEPSTEP_FOLDER / "forks"
    forks.mkdir(parents=True)
    (forks / f"{run.name}.fork-1.json").write_text(json.dumps({"step": steps // 2, "submission": None}))
    (run / layout.KEEPSTEP_FOLDER / "exit.json").write_text(
        json.dumps({"outcome": "finished", "code": 0, "time": BEGAN + steps})
    )
    return run


def _logged(step: int, steps: int) -> dict[str, Any]:
    noise = 0.15 * math.sin(step * 12.9898) * math.sin(step * 78.233)
    loss = 1.8 + 4.2 * math.exp(-step / 1800) + noise + (1.5 if step % 3331 < 3 else 0.0)
    lr = 1e-3 * min(1.0, step / 500) * 0.5 * (1 + math.cos(math.pi * step / steps))
    return {"step": step, "loss": math.nan if 6200 <= step < 6230 else loss, "lr": lr}


def _score(step: int, number: int, count: int, digest: str) -> Score:
    accuracy = 0.78 - 0.5 * math.exp(-3 * number / count) - 0.1 * (number / count) ** 4 + 0.01 * math.sin(number * 7.1)
    metrics = {"accuracy": accuracy if number % 61 else math.nan, "loss": 2.4 - accuracy}
    if number % 29:
        metrics["canary/recall"] = 0.99 - 0.3 * (number / count) ** 2
    return Score(step, digest, "task", SCORED, f"save-{step}", metrics)
