"""The tables of a report."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from keepstep.plan.report.facts import SAVED
from keepstep.plan.report.records import Entry
from keepstep.plan.report.story import RunStory
from keepstep.plan.report.words import UNKNOWN, number_text, seconds_text, size_text, step_text, time_text

# Longer tables show their newest rows.
MOST_ROWS = 400
_MOST_METRICS = 8
# Longer tables are folded.
_FEW = 12


@dataclass(frozen=True)
class Table:
    """Rows under a caption. `numbers`: columns that are aligned to the right; `is_open`: whether it is unfolded."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()
    is_open: bool = False
    note: str = ""


def _table(
    caption: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Iterable[int] = (),
    *,
    opened: bool = False,
) -> Table:
    found = [tuple(row) for row in rows]
    shown = found[-MOST_ROWS:]
    note = f"the newest {len(shown):,} of {len(found):,} rows" if len(shown) < len(found) else ""
    return Table(caption, tuple(header), tuple(shown), frozenset(numbers), opened, note)


def attempts(story: RunStory) -> Table:
    """Each start of the run."""
    header = (
        "Attempt",
        "From step",
        "To step",
        "Saves",
        "Failed",
        "Made again",
        "Ranks",
        "First row (UTC)",
        "What then",
    )
    rows = [
        (
            str(one.number),
            step_text(one.start),
            step_text(one.end),
            f"{one.saves:,}",
            f"{one.failures:,}",
            f"{one.redone:,}",
            UNKNOWN if one.world_size is None else f"{one.world_size:,}",
            time_text(one.began),
            one.outcome,
        )
        for one in story.attempts
    ]
    return _table("Attempts", header, rows, range(7), opened=len(rows) <= _FEW)


def events(story: RunStory) -> Table:
    """What happened, committed saves left out: they have a table of their own."""
    rows = [
        (
            UNKNOWN if one.attempt is None else str(one.attempt),
            step_text(one.step),
            one.kind,
            time_text(one.time),
            one.detail,
        )
        for one in story.events
        if one.kind != SAVED
    ]
    header = ("Attempt", "Step", "What", "Time (UTC)", "Detail")
    return _table("Events, by attempt and step", header, rows, (0, 1), opened=len(rows) <= _FEW)


def scores(story: RunStory) -> Table:
    """All scores of each checkpoint, and what it is in the choice."""
    board = story.scores
    names = [one.name for one in board.series]
    names = sorted(names, key=lambda name: name != board.metric)[:_MOST_METRICS]
    known = {row.digest: row.metrics for row in board.rows}
    rows = [
        (
            step_text(row.step),
            *(number_text(known.get(row.digest, {}).get(name)) for name in names),
            row.standing.value,
            row.reason,
        )
        for row in (board.choice.rows if board.choice else ())
    ]
    return _table("Scores", ("Step", *names, "State", "Why"), rows, range(len(names) + 1))


def ranks(story: RunStory) -> Table:
    """Medians of each rank."""
    header = ("Rank", "Host", "Snapshot", "Write", "Sync", "Index", "Slowest in saves")
    rows = [
        (
            one.ranks,
            one.host,
            *(seconds_text(part) for part in (one.snapshot, one.write, one.sync, one.index)),
            f"{one.slowest:,}",
        )
        for one in story.saves.ranks
    ]
    return _table("Cost per rank, medians of all saves", header, rows, range(2, 7), opened=True)


def saves(story: RunStory) -> Table:
    """Each committed save."""
    header = ("Step", "Attempt", "Mode", "Size", "Job waited", "Slowest write", "Commit", "Slowest rank", "Straggler")
    rows = [
        (
            step_text(one.step),
            UNKNOWN if one.attempt is None else str(one.attempt),
            one.mode or UNKNOWN,
            size_text(one.bytes),
            *(seconds_text(part) for part in (one.stall, one.write, one.commit)),
            UNKNOWN if one.slowest_rank is None else str(one.slowest_rank),
            UNKNOWN if one.straggler is None else str(one.straggler),
        )
        for one in story.saves.saves
    ]
    return _table("Saves", header, rows, (0, 1, 3, 4, 5, 6, 7, 8))


def checkpoints(story: RunStory) -> Table:
    """What is in the folder."""
    header = ("Step", "State", "Size", "Ranks", "Attempt", "Created (UTC)", "Problem")
    rows = [
        (
            step_text(one.step),
            one.condition + (", pinned" if one.pinned else ""),
            size_text(one.size),
            UNKNOWN if one.world_size is None else f"{one.world_size:,}",
            UNKNOWN if one.attempt is None else str(one.attempt),
            time_text(one.created_at),
            one.problem,
        )
        for one in story.checkpoints
    ]
    return _table("Checkpoints in the folder", header, rows, (0, 2, 3, 4))


def mirrors(story: RunStory) -> Table:
    """How far each mirror is, by the log: it was not asked."""
    header = ("Address", "Newest", "Uploaded", "Not uploaded", "Bytes", "Upload speed", "Failed", "Last problem")
    rows = [
        (
            one.address,
            step_text(one.newest),
            f"{one.uploaded:,}",
            f"{one.waiting:,}",
            size_text(one.bytes),
            f"{size_text(one.bytes / one.seconds)}/s" if one.seconds > 0 and math.isfinite(one.seconds) else UNKNOWN,
            f"{one.failures:,}",
            one.problem,
        )
        for one in story.mirrors
    ]
    return _table("Mirrors, by the log of saves", header, rows, range(1, 7), opened=True)


def changes(story: RunStory) -> Table:
    """What differs between attempts."""
    rows = [(f"{one.before} → {one.after}", one.field, one.was, one.now, one.effect) for one in story.record.changes]
    header = ("Attempts", "Field", "Before", "After", "What it may do")
    return _table("Changes between attempts", header, rows, opened=len(rows) <= 2 * _FEW)


def fields(story: RunStory, entries: Sequence[Entry], caption: str) -> Table:
    """Fields of the newest record."""
    attempt = "" if story.record.attempt is None else f" of attempt {story.record.attempt}"
    return _table(f"{caption}{attempt}", ("Field", "Value"), [(one.field, one.value) for one in entries])
