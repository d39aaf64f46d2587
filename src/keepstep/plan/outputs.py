"""Outputs of an inference job: names of parts, the positions they hold, and what a start has to settle."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

# Readers of data sets pass over names that begin with an underscore or a dot, and so see rows only.
INDEX = "_index.jsonl"
SUCCESS = "_SUCCESS.json"
PREVIOUS = "_previous"
_ROWS, _ERRORS = "part", "_errors"
_PART = r"(?:part|_errors)-[0-9]{9,}-[0-9]{5,}-[0-9]+-[0-9]+\.[a-z]+(?:\.[a-z]+)?"
_VISIBLE = re.compile(_PART, re.ASCII)
# The second form is what a process leaves that is killed while it writes the last file.
_HIDDEN = re.compile(rf"\.{_PART}\.tmp|\._SUCCESS\.json\.[0-9]+\.tmp", re.ASCII)


@dataclass(frozen=True, slots=True)
class Span:
    """Positions in the input: `count` in a row from `begin` on, and that `repeats` times, `stride` apart."""

    begin: int
    count: int
    stride: int = 0
    repeats: int = 1

    def runs(self) -> Iterator[tuple[int, int]]:
        """The runs of positions that follow each other: begin and count."""
        return ((self.begin + number * self.stride, self.count) for number in range(self.repeats))

    @property
    def size(self) -> int:
        """How many positions."""
        return self.count * self.repeats


class Runs:
    """Collects positions in the order in which they come, as runs."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int]] = []

    def add(self, begin: int, count: int = 1) -> None:
        """The next positions: `count` from `begin` on."""
        if not count:
            return
        if self._runs and sum(self._runs[-1]) == begin:
            begin, before = self._runs[-1]
            self._runs[-1] = (begin, before + count)
        else:
            self._runs.append((begin, count))

    def sort(self) -> list[int] | None:
        """Let positions rise. Returns which of them, by number, come one after the other now; None if they did rise."""
        if all(sum(a) < b[0] for a, b in pairwise(self._runs)):
            return None
        positions = [position for begin, count in self._runs for position in range(begin, begin + count)]
        order = sorted(range(len(positions)), key=positions.__getitem__)
        self.clear()
        for number in order:
            self.add(positions[number])
        return order

    def clear(self) -> None:
        """Forget all."""
        self._runs = []

    def spans(self) -> tuple[Span, ...]:
        """All of them, with runs of one length that are equally far apart as one span."""
        spans: list[Span] = []
        for begin, count in self._runs:
            last = spans[-1] if spans else None
            if last is not None and last.count == count:
                stride = begin - last.begin - (last.repeats - 1) * last.stride
                if last.repeats == 1 or stride == last.stride:
                    spans[-1] = Span(last.begin, count, stride, last.repeats + 1)
                    continue
            spans.append(Span(begin, count))
        return tuple(spans)


def runs_of(spans: Iterable[Span]) -> Iterator[tuple[int, int]]:
    """The runs of several spans, one after the other."""
    return (run for span in spans for run in span.runs())


@dataclass(frozen=True)
class Part:
    """One file of rows, or of failed ones.

    Attributes:
        name: of the file, once it is committed; with the shard's folder in front, where all shards are looked at.
        rows: in it; the n-th is that of the n-th position of the spans.
        bytes, digest: of the file.
        spans: positions in the input.
    """

    name: str
    rows: int
    bytes: int
    digest: str
    spans: tuple[Span, ...]

    @property
    def is_errors(self) -> bool:
        """Whether its rows are failed ones."""
        return self.name.rpartition("/")[2].startswith(_ERRORS)

    @property
    def first(self) -> int:
        """Its first position."""
        return min(begin for begin, _ in runs_of(self.spans))

    def to_row(self) -> dict[str, Any]:
        """As the index and the final manifest have it."""
        spans = [[span.begin, span.count, span.stride, span.repeats] for span in self.spans]
        return {"part": self.name, "rows": self.rows, "bytes": self.bytes, "digest": self.digest, "spans": spans}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Part":
        """The reverse. Raises ValueError where the row is none."""
        try:
            spans = tuple(Span(*(int(number) for number in span)) for span in row["spans"])
            part = cls(str(row["part"]), int(row["rows"]), int(row["bytes"]), str(row["digest"]), spans)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no row of an index of outputs: {row!r}") from error
        if not is_part(part.name) or sum(span.size for span in spans) != part.rows or not spans:
            raise ValueError(f"no row of an index of outputs: {row!r}")
        return part


def part_name(step: int, rank: int, attempt: int, number: int, suffix: str, *, is_errors: bool = False) -> str:
    """The file name of a part; `number` counts the files of a rank in an attempt."""
    return f"{_ERRORS if is_errors else _ROWS}-{step:09d}-{rank:05d}-{attempt}-{number}.{suffix}"


def hidden_name(name: str) -> str:
    """What a part is called until the checkpoint is committed that knows it."""
    return f".{name}.tmp"


def is_part(name: str) -> bool:
    """Whether a name is that of a part that can be read."""
    return _VISIBLE.fullmatch(name) is not None


def is_hidden(name: str) -> bool:
    """Whether a name is that of a part that is not committed, or not known to be."""
    return _HIDDEN.fullmatch(name) is not None


def in_input_order(parts: Iterable[Part]) -> list[Part]:
    """By their first positions."""
    return sorted(parts, key=lambda part: (part.first, part.name))


@dataclass(frozen=True)
class Settlement:
    """What a start does with the files in a folder of outputs.

    Attributes:
        publish: parts that are committed and still hidden.
        drop: hidden files that no checkpoint knows.
        set_aside: parts that were committed by a checkpoint which the run does not go on from.
        problems: parts that are gone or changed, in words; then nothing is done.
    """

    publish: tuple[Part, ...]
    drop: tuple[str, ...]
    set_aside: tuple[str, ...]
    problems: tuple[str, ...]


def settle(listed: Sequence[Part], sizes: Mapping[str, int]) -> Settlement:
    """Compare the parts that a checkpoint knows with what lies in the folder (bytes by file name)."""
    publish: list[Part] = []
    problems: list[str] = []
    for part in listed:
        hidden = part.name not in sizes and hidden_name(part.name) in sizes
        size = sizes.get(hidden_name(part.name) if hidden else part.name)
        if size != part.bytes:
            problems.append(
                f"{part.name} is gone" if size is None else f"{part.name} has {size} bytes, not {part.bytes}"
            )
        elif hidden:
            publish.append(part)
    known = {part.name for part in listed}
    needed = {hidden_name(part.name) for part in publish}
    drop = tuple(sorted(name for name in sizes if is_hidden(name) and name not in needed))
    set_aside = tuple(sorted(name for name in sizes if is_part(name) and name not in known))
    return Settlement(tuple(publish), drop, set_aside, tuple(problems))
