"""A tiny inference job with 103 inputs whose rows go to a sink, and what its folder must hold."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from keepstep.config import JobConfig, parse_job
from keepstep.job.protocols import JobContext
from keepstep.plan.outputs import is_part
from tests.rig import jobs

LENGTH = 103
# What the providers make; a test sets it in the process that runs the job.
length = LENGTH
bad: frozenset[int] = frozenset()
unreadable: frozenset[int] = frozenset()


class Inputs:
    """Every third sample is like the one before it: such duplicates are kept."""

    kind = "numbers"

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        if index in unreadable:
            raise OSError(f"cannot open {index}")
        return index, torch.full((8,), (index - index % 3 // 2) / 10)


class Texts(Inputs):
    """The same, of unlike lengths."""

    def length_of(self, index: int) -> int:
        return index * 37 % 101


class Rows:
    """A row for each sample, and nothing that is collected."""

    def predict(self, model: Any, batch: Any) -> Any:
        ids, features = batch
        if failing := bad.intersection(ids.tolist()):
            raise ValueError(f"cannot read {min(failing)}")
        return [{"sum": round(float(x.sum()), 4), "text": "ä\u2028" * 3} for x in features]


class Columns:
    """Columns for the whole micro-batch, with ids of their own; a state beside them, which all ranks hold alike."""

    def __init__(self) -> None:
        self.total = 0.0

    def predict(self, model: Any, batch: Any) -> Any:
        ids, features = batch
        return {"id": [f"n{i}" for i in ids.tolist()], "embedding": features[:, :3].to(torch.bfloat16)}

    def collect(self, results: Any) -> None:
        self.total += sum(float(row["embedding"][0]) for row in results)

    def result(self) -> str:
        return f"{self.total:.3f}\n"

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


class Scores:
    """What the model says of each sample."""

    def predict(self, model: Any, batch: Any) -> Any:
        return [{"score": row.sum()} for row in model(batch[1])]


class Embeddings:
    """One array for each sample."""

    def predict(self, model: Any, batch: Any) -> Any:
        return [{"embedding": x[:2] + float(i)} for i, x in zip(*batch, strict=True)]


class Table:
    """An Arrow record batch for the whole micro-batch."""

    def predict(self, model: Any, batch: Any) -> Any:
        import pyarrow as pa

        ids, features = batch
        return pa.record_batch({"number": ids.tolist(), "values": features.tolist()})


def columns(context: JobContext) -> Columns:
    return Columns()


def scores(context: JobContext) -> Scores:
    return Scores()


def embeddings(context: JobContext) -> Embeddings:
    return Embeddings()


def table(context: JobContext) -> Table:
    return Table()


def inputs(context: JobContext) -> Inputs:
    return Inputs(length)


def texts(context: JobContext) -> Texts:
    return Texts(length)


def model(context: JobContext) -> torch.nn.Module:
    return torch.nn.Identity()


def rows(context: JobContext) -> Rows:
    return Rows()


def config(folder: Path, **settings: Any) -> JobConfig:
    """Batches of 4, a checkpoint every 5 steps; 26 steps."""
    outputs: Mapping[str, Any] = settings.pop("outputs", {})
    checkpointing = settings.pop("checkpointing", {})
    names = {
        "model": "tests.rig.outputs:model",
        "dataset": "tests.rig.outputs:inputs",
        "task": "tests.rig.outputs:rows",
    }
    providers = jobs.PROVIDERS | {name: settings.pop(name, default) for name, default in names.items()}
    mesh = settings.pop("mesh", {})
    base = {
        "batching": {"global_batch_size": 4},
        "checkpointing": {"save_dir": str(folder / "saves"), "period_steps": 5, "num_to_keep": 2} | checkpointing,
        "outputs": {"to": str(folder / "out")} | dict(outputs),
    }
    return parse_job({"mesh": mesh, "providers": providers, "inference": base | settings})


def visible(folder: Path) -> list[dict[str, Any]]:
    """All rows that a reader sees now, each line valid."""
    return [
        json.loads(line)
        for path in sorted((folder / "out").glob("part-*.jsonl"))
        for line in path.read_bytes().decode().split("\n")[:-1]
    ]


def check(folder: Path, count: int = LENGTH) -> None:
    """Each id once, every line valid, nothing hidden left, and the final manifest right."""
    found = sorted(visible(folder), key=lambda row: row["id"])
    assert [row["id"] for row in found] == list(range(count))
    assert [row["sum"] for row in found] == [round(8 * (i - i % 3 // 2) / 10, 4) for i in range(count)]
    names = {path.name for path in (folder / "out").iterdir()}
    assert names == {"_index.jsonl", "_SUCCESS.json", *filter(is_part, names)}
    success = json.loads((folder / "out" / "_SUCCESS.json").read_text())
    assert (success["rows"], success["errors"]) == (count, 0)
