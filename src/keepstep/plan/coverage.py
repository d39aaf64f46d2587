"""Which positions of the input a set of output parts holds, and in which order their rows make one file."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from keepstep.plan.outputs import Part, runs_of

_SHOWN = 5


@dataclass(frozen=True)
class Coverage:
    """Positions that no part holds, and those that more than one does: ranges of first and last.

    Attributes:
        end: one more than the last position that was expected or found.
        gaps, repeats: the ranges, in order.
    """

    end: int
    gaps: tuple[tuple[int, int], ...]
    repeats: tuple[tuple[int, int], ...]

    @property
    def problems(self) -> list[str]:
        """In words; empty where each position is there once."""
        texts = []
        for ranges, what in ((self.gaps, "no part holds"), (self.repeats, "more than one part holds")):
            if ranges:
                named = ", ".join(f"{a}" if a == b else f"{a} to {b}" for a, b in ranges[:_SHOWN])
                more = f" and {len(ranges) - _SHOWN} more ranges" if len(ranges) > _SHOWN else ""
                texts.append(f"{what} position {named}{more}")
        return texts


def coverage_of(parts: Iterable[Part], end: int | None = None, begin: int = 0) -> Coverage:
    """Compare the positions of parts, those of failed rows too, with the input.

    Args:
        parts: all that count.
        end: how many inputs there are; None while that is not known.
        begin: the first position; another than 0 in a shard, where `end` is the position behind the last.
    """
    gaps: list[tuple[int, int]] = []
    repeats: list[tuple[int, int]] = []
    reached = begin
    for first, count in sorted(run for part in parts for run in runs_of(part.spans)):
        if first > reached:
            gaps.append((reached, first - 1))
        elif first < reached:
            repeats.append((first, min(reached, first + count) - 1))
        reached = max(reached, first + count)
    if end is not None and reached < end:
        gaps.append((reached, end - 1))
    return Coverage(max(reached, end or 0), tuple(gaps), tuple(repeats))


def merge_order(parts: Sequence[Part]) -> Iterator[tuple[int, int]]:
    """The order in which parts give their rows, so that positions rise: index of the part, number of its next rows.

    Parts hold their rows in the order of rising positions, and no position twice.
    """
    taken = -1, 0
    for _, index, count in heapq.merge(*(_runs(index, part) for index, part in enumerate(parts))):
        if index == taken[0]:
            taken = index, taken[1] + count
            continue
        if taken[1]:
            yield taken
        taken = index, count
    if taken[1]:
        yield taken


def _runs(index: int, part: Part) -> Iterator[tuple[int, int, int]]:
    return ((begin, index, count) for begin, count in runs_of(part.spans))
