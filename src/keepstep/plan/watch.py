"""Which checkpoint a watcher scores next, which ones it holds back from retention, and when it is done."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from keepstep.plan.scores import FAILED, FINAL, MARKED, RETRY, Score

Order = Literal["newest", "oldest"]

# So many watchers may die while they score one checkpoint before it is given up: it may be what kills them.
MOST_DEATHS = 10
_LONGEST_PAUSE = 3600.0


@dataclass(frozen=True)
class Scorable:
    """A committed checkpoint, wherever it lies.

    Attributes:
        step, digest: which; the digest is that of its manifest.
        name: of its folder or file.
        size: bytes.
        marked: whether somebody has left a `.scored` file in it.
    """

    step: int
    digest: str
    name: str
    size: int
    marked: bool = False


@dataclass(frozen=True)
class Unit:
    """One checkpoint on one set. `tries`: how often that has failed."""

    checkpoint: Scorable
    set: str
    tries: int = 0

    @property
    def key(self) -> tuple[str, str]:
        return self.checkpoint.digest, self.set


@dataclass(frozen=True)
class Retries:
    """How often a score is tried, and how long after a failure (seconds; doubled each time)."""

    most: int = 3
    pause: float = 30.0

    def pause_after(self, tries: int) -> float:
        """Seconds to wait after so many failures."""
        return float(min(self.pause * 2 ** min(tries - 1, 20), max(_LONGEST_PAUSE, self.pause)))

    def outcome(self, tries: int) -> str:
        """What is noted of a failure when it was tried so often by now."""
        return FAILED if tries >= self.most else RETRY


@dataclass(frozen=True)
class WatchPlan:
    """What is to be done.

    Attributes:
        due: to be scored now, in this order.
        marked: to be noted as scored before.
        waiting: failed a short while ago.
        wait_seconds: until the first of those is due; None when none waits.
    """

    due: tuple[Unit, ...]
    marked: tuple[Unit, ...]
    waiting: tuple[Unit, ...]
    wait_seconds: float | None

    @property
    def is_done(self) -> bool:
        """Whether each checkpoint that is there has a final row for each set."""
        return not (self.due or self.marked or self.waiting)

    @property
    def unscored(self) -> tuple[Scorable, ...]:
        """What is still to be scored, each once: what is due, in its order, then what waits."""
        return tuple(dict.fromkeys(unit.checkpoint for unit in (*self.due, *self.waiting)))


def plan_watch(
    checkpoints: Collection[Scorable],
    sets: Sequence[str],
    known: Mapping[tuple[str, str], Score],
    now: float,
    *,
    order: Order = "newest",
    retries: Retries = Retries(),
    respects_marks: bool = True,
    reopened: Collection[Score] = (),
) -> WatchPlan:
    """Decide.

    Args:
        checkpoints: those that are there and complete.
        sets: names of the sets, in the order in which one checkpoint is scored on them.
        known: what counts of each checkpoint and set so far.
        now: by this machine's clock, in seconds since the epoch. Where a failure lies in the future a clock was set
            back, or differs: then nothing is waited for.
        order: which checkpoint comes first.
        retries: how failures are tried again.
        respects_marks: whether a `.scored` file counts as scored.
        reopened: rows that do not count, though they are final.
    """
    due, marked, waiting, pauses = [], [], [], []
    # A scorer may leave such a mark itself: then it says nothing about other sets.
    scored_here = {digest for (digest, _), row in known.items() if row.outcome != MARKED}
    for checkpoint in sorted(checkpoints, key=lambda one: (one.step, one.name), reverse=order == "newest"):
        for name in sets:
            row = known.get((checkpoint.digest, name))
            if row in reopened:
                row = None
            if row is not None and row.outcome in FINAL:
                continue
            unit = Unit(checkpoint, name, row.tries if row is not None else 0)
            left = 0.0
            if row is not None and row.outcome == RETRY and row.time <= now:
                left = row.time + retries.pause_after(row.tries) - now
            if row is None and checkpoint.marked and respects_marks and checkpoint.digest not in scored_here:
                marked.append(unit)
            elif left > 0:
                waiting.append(unit)
                pauses.append(left)
            else:
                due.append(unit)
    return WatchPlan(tuple(due), tuple(marked), tuple(waiting), min(pauses, default=None))


def plan_holds(unscored: Sequence[Scorable], budget: int) -> tuple[Scorable, ...]:
    """Which checkpoints are held back from retention until they are scored.

    Several watchers come to the same choice, so the budget holds for all of them together. One that does not fit is
    passed over, not waited behind.

    Args:
        unscored: in the order in which they are scored.
        budget: bytes that they may take together.
    """
    held, used = [], 0
    for one in unscored:
        if used + one.size <= budget:
            held.append(one)
            used += one.size
    return tuple(held)


def failures(known: Mapping[tuple[str, str], Score], sets: Sequence[str]) -> int:
    """How many checkpoints could not be scored on these sets, whoever has tried."""
    return sum(row.outcome == FAILED and row.set in sets for row in known.values())
