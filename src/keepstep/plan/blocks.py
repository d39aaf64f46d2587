"""Which blocks of a checkpoint are still to be read, and by whom."""

from collections.abc import Mapping, Sequence

# File to runs of blocks, as (first, last) with the last exclusive.
Runs = Mapping[str, Sequence[tuple[int, int]]]


def runs_of(marks: bytes | bytearray, value: int) -> list[tuple[int, int]]:
    """The runs of one value in a row of marks."""
    runs, at, size = [], 0, len(marks)
    while at < size:
        begin = marks.find(value, at)
        if begin < 0:
            break
        ends = [end for other in {0, 1} - {value} if (end := marks.find(other, begin)) >= 0]
        at = min(ends, default=size)
        runs.append((begin, at))
    return runs


def rest(blocks: Mapping[str, int], touched: Sequence[Runs]) -> dict[str, list[tuple[int, int]]]:
    """The runs that no rank has read.

    Args:
        blocks: the number of blocks of each file.
        touched: for each rank what it has read.
    """
    left = {}
    for name, count in blocks.items():
        marks = bytearray(count)
        for rank in touched:
            for first, last in rank.get(name, ()):
                marks[first:last] = b"\x01" * (last - first)
        left[name] = runs_of(marks, 0)
    return left


def share_out(left: Runs, rank: int, ranks: int) -> list[tuple[str, int, int]]:
    """This rank's share: an equal part of every file's blocks that are left, in whole runs cut where they must be."""
    total = sum(last - first for runs in left.values() for first, last in runs)
    begin, end = total * rank // ranks, total * (rank + 1) // ranks
    share, at = [], 0
    for name in sorted(left):
        for first, last in left[name]:
            low, high = max(begin, at), min(end, at + last - first)
            if low < high:
                share.append((name, first + low - at, first + high - at))
            at += last - first
    return share
