"""Shards of the input of an inference job: which part each takes, and how its folder is called."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_NAME = re.compile(r"shard-(\d{5,})-of-(\d{5,})", re.ASCII)
# What lies in a folder of checkpoints or of outputs that is not divided into shards.
_WHOLE = re.compile(r"save-\d+|_index\.jsonl", re.ASCII)
# What of a run record must be the same in all shards, where it is known.
SAME = ("dataset_sha256", "base_weights", "tokenizer_sha256")


@dataclass(frozen=True, order=True)
class Shard:
    """One of `count` parts of an input; the first has index 0."""

    index: int
    count: int

    @property
    def name(self) -> str:
        """Of its folders, in that of the checkpoints and in that of the outputs."""
        return f"shard-{self.index:05d}-of-{self.count:05d}"

    def bounds(self, length: int) -> tuple[int, int]:
        """Its first position in an input of this length, and the one behind its last.

        Sizes differ by one at most. A shard has no position where there are more shards than inputs.
        """
        return length * self.index // self.count, length * (self.index + 1) // self.count


@dataclass(frozen=True)
class Share:
    """What the outputs of a shard say of themselves.

    Attributes:
        index, count: of the shard.
        begin, end: its positions, those of the whole input: the first, and the one behind the last.
        inputs: samples of the whole input.
        made_of: what identifies the input and the weights, by its name in a run record.
    """

    index: int
    count: int
    begin: int
    end: int
    inputs: int
    made_of: Mapping[str, str | None] = field(default_factory=dict)

    def to_row(self) -> dict[str, Any]:
        """As the index has it."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Share":
        """The reverse. Raises KeyError, TypeError or ValueError where the row is none."""
        index, count, begin, end, inputs = (int(row[name]) for name in ("index", "count", "begin", "end", "inputs"))
        return cls(index, count, begin, end, inputs, {name: row["made_of"].get(name) for name in SAME})


def share_of(shard: Shard, inputs: int, record: Mapping[str, Any]) -> Share:
    """What a shard of an input of this length notes, from its run record (empty where it is not known)."""
    begin, end = shard.bounds(inputs)
    return Share(shard.index, shard.count, begin, end, inputs, {name: record.get(name) for name in SAME})


def differences(shares: Sequence[Share]) -> list[str]:
    """Why shards do not make one output: they were not made of the same; empty where they were."""
    first, *others = shares or [Share(0, 1, 0, 0, 0)]
    texts = []
    for other in others:
        names = f"shard {other.index} and shard {first.index}"
        if (other.count, other.inputs) != (first.count, first.inputs):
            texts.append(
                f"{names} are not of one input: {other.inputs} samples in {other.count} shards, and "
                f"{first.inputs} in {first.count}"
            )
        for name in SAME:
            a, b = other.made_of.get(name), first.made_of.get(name)
            if a is not None and b is not None and a != b:
                texts.append(f"{names} have different {name}: {a[:12]} and {b[:12]}")
    return texts


def shard_of(name: str) -> Shard | None:
    """The shard whose folder is called so; None where the name is another thing's."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    shard = Shard(int(found[1]), int(found[2]))
    return shard if shard.index < shard.count and shard.name == name else None


def all_shards(some: Iterable[Shard]) -> list[Shard]:
    """All shards of the job that some belong to; of several counts, those of each."""
    counts = sorted({shard.count for shard in some})
    return [Shard(index, count) for count in counts for index in range(count)]


def clash(names: Iterable[str], shard: Shard | None) -> str | None:
    """The name in a folder that tells of the same job divided in another way; None where there is none.

    Args:
        names: what lies in the folder.
        shard: of this job; None where it takes the whole input.
    """
    for name in sorted(names):
        other = shard_of(name)
        if other is not None and (shard is None or other.count != shard.count):
            return name
        if shard is not None and _WHOLE.fullmatch(name):
            return name
    return None
