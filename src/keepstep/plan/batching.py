"""How a global batch is divided over ranks and micro-batches. Ranks only divide it; they never change it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class BatchingError(ValueError):
    """The global batch cannot be divided this way."""


@dataclass(frozen=True)
class Division:
    """Equal shares of a global batch.

    Attributes:
        global_batch_size: samples of one step over all ranks.
        microbatch_size: samples of one forward pass of one rank.
        accumulation: forward passes of one rank in one step.
        ranks: data-parallel ranks.
    """

    global_batch_size: int
    microbatch_size: int
    accumulation: int
    ranks: int


def divide(global_batch_size: int, microbatch_size: int | None, ranks: int) -> Division:
    """Divide a global batch evenly. Without a micro-batch size a rank takes its share in one pass.

    Raises:
        BatchingError: it does not divide; the message lists what would.
    """
    if global_batch_size % ranks:
        fitting = [n for n in range(1, global_batch_size + 1) if global_batch_size % n == 0]
        near = ", ".join(str(n) for n in fitting if n <= 2 * ranks)
        raise BatchingError(
            f"global_batch_size {global_batch_size} cannot be shared by {ranks} data-parallel ranks; "
            f"rank counts that work: {near}"
        )
    share = global_batch_size // ranks
    size = microbatch_size or share
    if share % size:
        fitting = [n for n in range(1, share + 1) if share % n == 0]
        raise BatchingError(
            f"each of {ranks} ranks takes {share} of the {global_batch_size} samples of a step, which microbatch_size "
            f"{size} does not divide; sizes that work: {', '.join(str(n) for n in fitting)}"
        )
    return Division(global_batch_size, size, share // size, ranks)


def micro_batches(batch: Sequence[T], division: Division, rank: int) -> list[tuple[list[T], int]]:
    """A rank's micro-batches of one global batch, each with the number of its real samples.

    The last global batch of a pass may be short. Then some ranks have fewer samples, or none; all ranks still make
    the same number of passes, since sharded models meet in each: a pass without a sample of its own repeats one, and
    0 real samples tells the caller to drop the result.
    """
    share = division.microbatch_size * division.accumulation
    size = division.microbatch_size
    longest = min(share, len(batch))
    passes = -(-longest // size)
    own = list(batch[rank * share : (rank + 1) * share])
    parts = []
    for i in range(passes):
        part = own[i * size : (i + 1) * size]
        parts.append((part or [batch[-1]], len(part)))
    return parts
