"""How large the checkpoints of a run are, and how long they take."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from keepstep.plan.training_size import Content, Held

# Measured on checkpoints of keepstep with AdamW; the tests compare. A tensor costs its archive's frame, its entry in
# the index and in `.metadata`; a trained parameter the options of its group and a step count; a rank its random states.
_ENTRY, _OPTIONS, _STATES, _REST = 1_000, 7_500, 18_000, 5_000
# One that is larger begins at a page: half of one is lost on an average, before and behind it.
_LARGE, _PAGE = 64 * 1024, 4096
# A digest of 16 bytes for each block of 16 KiB.
_DIGESTED = 1024


@dataclass(frozen=True)
class Ranks:
    """Ranks that shard state, times replicas that hold the same shards."""

    shard: int = 1
    replicate: int = 1

    @property
    def world(self) -> int:
        """All ranks."""
        return self.shard * self.replicate


@dataclass(frozen=True)
class Part:
    """Bytes of one part of a checkpoint: in all, and what the fullest rank writes of it (None: not known)."""

    name: str
    size: int
    rank_size: int | None


@dataclass(frozen=True)
class Rates:
    """Bytes a second of writing and reading; `each_rank`: each rank has them for itself, else all share them.

    Where they are shared, what replicas read is counted once: those of one machine find it in its cache.
    """

    write: float
    read: float
    each_rank: bool = False


@dataclass(frozen=True)
class Estimate:
    """The size of one checkpoint, of those that are kept, and their time.

    Attributes:
        source: what it was made from.
        exact: the bytes were read from a checkpoint, and not computed.
        parameters, trained: numbers; None where they are not known.
        parts: of a checkpoint.
        size: bytes of one.
        world: ranks that write it.
        rank_size: bytes that the fullest rank writes; in async mode also what it takes of host memory.
        keep: checkpoints that remain after a save; None: not known.
        kept_size: bytes of those.
        peak_size: bytes while one more is written, since the oldest goes after that.
        rates: of storage, given or measured; None without.
        save_seconds, resume_seconds: at these rates.
        free: bytes where it is to be saved; None: not asked or not known.
        assumptions: what it rests on.
        notes: what else one should know of it.
    """

    source: str
    exact: bool
    parameters: int | None
    trained: int | None
    parts: tuple[Part, ...]
    size: int
    world: int
    rank_size: int
    keep: int | None = None
    kept_size: int | None = None
    peak_size: int | None = None
    rates: Rates | None = None
    save_seconds: float | None = None
    resume_seconds: float | None = None
    free: int | None = None
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Retention:
    """Checkpoints that remain after a save, and that are there while one is written; None: nobody knows.

    `budget`: bytes that those that remain may take.
    """

    keep: int | None
    peak: int | None
    budget: int | None = None


def retention(keep: int | None, saves: int | None = None, more: int = 0, budget: int | None = None) -> Retention | None:
    """How many checkpoints there are at the end and at most; None when nobody knows.

    Args:
        keep: num_to_keep; None keeps all.
        saves: of the whole run; None: more than are kept.
        more: that other rules keep beside.
        budget: bytes that all that remain may take; None: any.
    """
    counts = [count for count in (None if keep is None else keep + more, saves) if count is not None]
    if not counts:
        return None if budget is None else Retention(None, None, budget)
    total = min(counts)
    return Retention(total, total if total == saves else total + 1, budget)


def saves_of(total_steps: int, period_steps: int | str | None) -> int | None:
    """How many checkpoints a run makes: every that many steps, and at the last one.

    None where time decides (`auto`, or `period_minutes` in place of steps): nobody knows yet.
    """
    if period_steps in ("auto", None):
        return None
    if period_steps == "disable":
        return 0
    return -(-total_steps // period_steps) if isinstance(period_steps, int) else 1


def measure(content: Content, ranks: Ranks) -> tuple[Part, ...]:
    """The parts of a checkpoint. State is sharded as FSDP2 does it, by rows; replicas divide the writing of a shard."""
    names = list(dict.fromkeys(held.part for held in content.held))
    parts = []
    for name in names:
        own = [held for held in content.held if held.part == name]
        of_rank = -(-sum(_shard(held, ranks.shard) for held in own) // ranks.replicate)
        parts.append(Part(name, sum(held.size for held in own), of_rank))
    return (*parts, _other(content, ranks))


def _shard(held: Held, shards: int) -> int:
    if not held.shape:
        return held.size
    rows = -(-held.shape[0] // shards)
    return rows * math.prod(held.shape[1:]) * held.itemsize * held.count


def _other(content: Content, ranks: Ranks) -> Part:
    """Frames, options, indexes and `.metadata`: about, and without the state of data, task and tracker."""
    # Of a number of parameters nobody knows how many tensors they are.
    known = content.held if content.tensors else ()
    shards = sum(_ENTRY * held.count for held in known)
    shards += sum(_PAGE * held.count for held in known if _shard(held, ranks.shard) >= _LARGE * held.count)
    blocks = sum(held.size for held in content.held) // _DIGESTED
    trees = _REST + _OPTIONS * content.tensors + _ENTRY * content.digests
    size = trees + _STATES * ranks.world + shards * ranks.shard + blocks
    # The main process writes what belongs to no tensor.
    return Part("other", size, trees + _STATES + shards + blocks // ranks.world)


def estimate(
    source: str,
    content: Content,
    ranks: Ranks,
    kept: Retention | None = None,
    rates: Rates | None = None,
    assumptions: Sequence[str] = (),
) -> Estimate:
    """The size of the checkpoints of a training, and their time."""
    parts = measure(content, ranks)
    size, rank_size = sum(part.size for part in parts), sum(part.rank_size or 0 for part in parts)
    found = Estimate(
        source,
        False,
        content.parameters,
        content.trained,
        parts,
        size,
        ranks.world,
        rank_size,
        assumptions=tuple(assumptions),
    )
    return complete(found, kept, rates, ranks.replicate)


def _counts(kept: Retention | None, size: int) -> tuple[int | None, int | None]:
    """Checkpoints that remain and that are there at most. The newest remains whatever the budget."""
    if kept is None or kept.budget is None:
        return (None, None) if kept is None else (kept.keep, kept.peak)
    fitting = max(1, kept.budget // max(1, size))
    keep = fitting if kept.keep is None else min(kept.keep, fitting)
    return keep, keep + 1 if kept.peak is None else min(kept.peak, keep + 1)


def complete(one: Estimate, kept: Retention | None, rates: Rates | None, replicas: int = 1) -> Estimate:
    """The same with what follows from its size.

    Args:
        one: of one checkpoint.
        kept: how many there are.
        rates: of storage.
        replicas: that hold the same shard, which each of them reads whole.
    """
    keep, peak = _counts(kept, one.size)
    if keep is not None and peak is not None:
        one = replace(one, keep=keep, kept_size=keep * one.size, peak_size=peak * one.size)
    if rates is None:
        return one
    written, read = (one.rank_size, one.rank_size * replicas) if rates.each_rank else (one.size, one.size)
    return replace(one, rates=rates, save_seconds=written / rates.write, resume_seconds=read / rates.read)
