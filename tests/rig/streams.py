"""Iterable data sets of every kind that a stream may be made of. Each sample is its id and a random number."""

import random
from collections.abc import Iterator
from typing import Any

import datasets
import torch
import torchdata.nodes
from torch.utils.data import IterableDataset, get_worker_info

from keepstep.job.protocols import JobContext

LENGTH = 23


def own_part(rank: int, size: int) -> list[int]:
    """The ids of this rank and worker."""
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    return list(range(LENGTH))[rank::size][worker::workers]


def sample(number: int) -> torch.Tensor:
    return torch.tensor([float(number), random.random()])


class Plain(IterableDataset[Any]):
    """No state, no length."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    def __iter__(self) -> Iterator[Any]:
        for number in own_part(self.rank, self.size):
            yield sample(number)


class WithState(Plain):
    """Goes on from its own state; counts what it reads."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        super().__init__(rank, size)
        self.at = self.reads = 0

    def __iter__(self) -> Iterator[Any]:
        numbers = own_part(self.rank, self.size)
        while self.at < len(numbers):
            self.at += 1
            self.reads += 1
            yield sample(numbers[self.at - 1])
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def _rows(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        for i in range(6 if shard else 5):
            yield {"id": 6 * shard + i}


def hugging_face(rank: int = 0, size: int = 1) -> Any:
    rows = datasets.IterableDataset.from_generator(_rows, gen_kwargs={"shards": [3, 2, 1, 0]})
    return rows.shard(num_shards=size, index=rank) if size > 1 else rows


def shuffled(rank: int = 0, size: int = 1) -> Any:
    return hugging_face(rank, size).shuffle(seed=3, buffer_size=8)


def interleaved(rank: int = 0, size: int = 1) -> Any:
    two = [shuffled(rank, size), hugging_face(rank, size)]
    return datasets.interleave_datasets(two, probabilities=[0.4, 0.6], seed=5)


def nodes(rank: int = 0, size: int = 1) -> Any:
    source = torchdata.nodes.IterableWrapper(Plain(rank, size))
    return torchdata.nodes.Loader(torchdata.nodes.Mapper(source, lambda x: x * 2))


KINDS = {
    "plain": Plain,
    "with state": WithState,
    "hugging face": hugging_face,
    "shuffled": shuffled,
    "interleaved": interleaved,
    "nodes": nodes,
}


class _ForModel(IterableDataset[Any]):
    """(id, features) as the tiny job's task takes them, from any of the above."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        for row in self.inner:
            number = row["id"] if isinstance(row, dict) else float(row[0])
            yield number, torch.linspace(-1, 1, 8) * (number + 1) / LENGTH + 0.1 * random.random()


class _ForModelWithState(_ForModel):
    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)


def plain_stream(context: JobContext) -> Any:
    return _ForModel(Plain(context.rank, context.world_size))


def stream_with_state(context: JobContext) -> Any:
    return _ForModelWithState(WithState(context.rank, context.world_size))


def _row(row: dict[str, Any]) -> dict[str, Any]:
    noise = 0.1 * random.random()
    return {"id": row["id"], "x": [(row["id"] + 1) / LENGTH * k / 8 + noise for k in range(8)]}


def _pairs(rows: list[dict[str, Any]]) -> tuple[list[int], torch.Tensor]:
    return [row["id"] for row in rows], torch.tensor([row["x"] for row in rows])


def shuffled_stream(context: JobContext) -> Any:
    rows = shuffled(context.rank, context.world_size).map(_row)
    rows.collate = _pairs
    return rows
