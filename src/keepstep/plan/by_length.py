"""Micro-batches of samples of like length. The global batch and each rank's share of it stay what they are."""

from collections.abc import Sequence
from typing import TypeVar

from keepstep.plan.batching import Division

T = TypeVar("T")


def pack(lengths: Sequence[int], budget: int, most: int) -> list[list[int]]:
    """Group samples so that no group, each of its samples padded to the longest, is larger than the budget.

    The longest come first: what does not fit into memory fails in the first pass. A sample that is longer than the
    budget is a group of its own.

    Args:
        lengths: of the samples, 0 or more.
        budget: the most of one group: number of its samples times the longest length.
        most: samples of one group, 1 or more.

    Returns:
        Places in `lengths`, each in one group.
    """
    groups: list[list[int]] = []
    longest = 0
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        if groups and len(groups[-1]) < most and (len(groups[-1]) + 1) * longest <= budget:
            groups[-1].append(place)
        else:
            groups.append([place])
            longest = lengths[place]
    return groups


def micro_batches_by_length(
    batch: Sequence[T], lengths: Sequence[int], division: Division, rank: int, budget: int
) -> list[tuple[list[T], int]]:
    """A rank's micro-batches of one global batch, each with the number of its real samples.

    All ranks make the same number of passes, since sharded models meet in each: who has fewer repeats its shortest
    sample, or the shortest of the batch, with 0 real samples.

    Args:
        batch: the samples of the global batch, in the order of the input.
        lengths: of these.
        division: how they are shared; its micro-batch size is the most of one pass.
        rank: whose micro-batches.
        budget: see `pack`.
    """
    share = division.microbatch_size * division.accumulation
    shares = [range(begin, min(begin + share, len(batch))) for begin in range(0, len(batch), share)]
    packed = [pack([lengths[place] for place in places], budget, division.microbatch_size) for places in shares]
    passes = max(len(groups) for groups in packed)
    own, begin = (packed[rank], rank * share) if rank < len(packed) else ([], 0)
    parts = [([batch[begin + place] for place in group], len(group)) for group in own]
    candidates = shares[rank] if own else range(len(batch))
    shortest = batch[min(candidates, key=lambda place: (lengths[place], place))]
    return parts + [([shortest], 0)] * (passes - len(parts))
