"""An inference job over files, whose task tells what it was given."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from keepstep.config import JobConfig, parse_job
from keepstep.job.protocols import JobContext
from tests.rig import jobs


def write(folder: Path, count: int, files: int = 3) -> Path:
    """Records of unlike lengths in JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [json.dumps({"n": n, "text": "x" * (n * 37 % 101)}) + "\n" for n in range(count)]
    for number in range(files):
        part = records[number * count // files : (number + 1) * count // files]
        (folder / f"{number}.jsonl").write_text("".join(part))
    return folder


class Echo(jobs.Sums):
    """One row for each record; `sizes` are the micro-batches: their longest text and number of records."""

    sizes: list[tuple[int, int]]

    def __init__(self) -> None:
        super().__init__()
        self.sizes = []

    def predict(self, model: nn.Module, batch: Any) -> list[Any]:
        assert not model.training
        self.sizes.append((max(len(record["text"]) for record in batch), len(batch)))
        return [{"id": record["n"], "length": len(record["text"])} for record in batch]


def echo(context: JobContext) -> Echo:
    return Echo()


def inference(folder: Path, paths: Path, **settings: Any) -> JobConfig:
    """Over JSON lines; it saves every 2 steps to `<folder>/inference` and writes `<folder>/rows.jsonl`."""
    base = {
        "batching": {"global_batch_size": 8, "microbatch_size": 2},
        "checkpointing": {"save_dir": str(folder / "inference"), "period_steps": 2},
        "output_to": str(folder / "rows.jsonl"),
    }
    providers = {
        "model": jobs.PROVIDERS["model"],
        "task": "tests.rig.file_jobs:echo",
        "dataset": {"kind": "jsonl", "paths": str(paths)},
    }
    return parse_job({"providers": providers, "inference": base | settings})
