"""What saves cost: the time that the job waited, and where each rank spent it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from keepstep.plan.report.facts import SAVED, Row, seconds, text, whole
from keepstep.plan.report.series import MOST_POINTS, Series, series_of

_PARTS = ("snapshot", "write", "sync", "index")
# More ranks than this are not told one by one.
MOST_RANKS = 16


@dataclass(frozen=True)
class Save:
    """One save.

    Attributes:
        stall: seconds that the job waited.
        write: seconds of the slowest rank, its sync included.
        commit: seconds from then to the commit.
    """

    attempt: int | None
    step: int
    mode: str
    bytes: int | None
    stall: float | None
    write: float | None
    commit: float | None
    slowest_rank: int | None
    straggler: int | None


@dataclass(frozen=True)
class RankCost:
    """Medians over all saves, in seconds, of one rank, or of several (`ranks` says which).

    Attributes:
        slowest: in how many saves it took longest.
    """

    ranks: str
    host: str
    snapshot: float | None
    write: float | None
    sync: float | None
    index: float | None
    slowest: int


@dataclass(frozen=True)
class SaveCosts:
    """All saves together.

    Attributes:
        saves: in the order in which they were written down.
        series: stall, write and commit over steps.
        ranks: the slowest first where there are many.
        stall: seconds that the job has waited for all of them.
    """

    saves: tuple[Save, ...]
    series: tuple[Series, ...]
    ranks: tuple[RankCost, ...]
    stall: float


def costs_of(rows: Sequence[Row], most: int = MOST_POINTS) -> SaveCosts:
    """Reckon up the rows of committed saves. What a row does not say is not known."""
    saved = [row for row in rows if row.get("outcome") == SAVED and whole(row.get("step")) is not None]
    saves = tuple(map(_save, saved))
    names = (("job waited", "stall"), ("slowest write", "write"), ("commit", "commit"))
    series = [
        series_of(name, [(save.step, value) for save in saves if (value := getattr(save, field)) is not None], most)
        for name, field in names
    ]
    return SaveCosts(
        saves, tuple(one for one in series if one.count), _ranks(saved, saves), sum(one.stall or 0 for one in saves)
    )


def without_ranks(row: Row) -> Row:
    """A row with what `costs_of` makes of its ranks in their place: the medians of single ranks lack it."""
    ranks = _rows_of_ranks(row)
    if not ranks:
        return row
    told = {"world_size": len(ranks), "slowest_write": _slowest(ranks), "slowest_snapshot": _snapshot(ranks)}
    return {name: value for name, value in {**told, **row}.items() if name != "ranks" and value is not None}


def _save(row: Row) -> Save:
    ranks = _rows_of_ranks(row)
    return Save(
        attempt=whole(row.get("attempt")),
        step=whole(row.get("step")) or 0,
        mode=text(row.get("mode")),
        bytes=whole(row.get("bytes")),
        stall=_stall(row, ranks),
        write=_slowest(ranks) if ranks else seconds(row.get("slowest_write")),
        commit=seconds(row.get("commit_seconds")),
        slowest_rank=whole(row.get("slowest_rank")),
        straggler=whole(row.get("straggler")),
    )


def _stall(row: Row, ranks: Sequence[Row]) -> float | None:
    """What the row says; else all of it, or in the background the snapshot."""
    lost = seconds(row.get("lost_seconds"))
    if lost is not None:
        return lost
    if row.get("mode") == "async":
        return _snapshot(ranks) if ranks else seconds(row.get("slowest_snapshot"))
    return seconds(row.get("seconds"))


def _snapshot(ranks: Sequence[Row]) -> float | None:
    return max((value for rank in ranks if (value := seconds(rank.get("snapshot"))) is not None), default=None)


def _slowest(ranks: Sequence[Row]) -> float | None:
    return max((write for rank in ranks if (write := _writing(rank)) is not None), default=None)


def _writing(rank: Row) -> float | None:
    write, sync = seconds(rank.get("write")), seconds(rank.get("sync"))
    return None if write is None and sync is None else (write or 0.0) + (sync or 0.0)


def _rows_of_ranks(row: Row) -> list[Row]:
    ranks = row.get("ranks")
    return [rank if isinstance(rank, dict) else {} for rank in ranks] if isinstance(ranks, list) else []


def _ranks(rows: Sequence[Row], saves: Sequence[Save]) -> tuple[RankCost, ...]:
    spent: dict[int, dict[str, list[float]]] = {}
    hosts: dict[int, str] = {}
    for row in rows:
        for number, rank in enumerate(_rows_of_ranks(row)):
            hosts[number] = text(rank.get("host")) or hosts.get(number, "")
            parts = spent.setdefault(number, {part: [] for part in _PARTS})
            for part in _PARTS:
                if (value := seconds(rank.get(part))) is not None:
                    parts[part].append(value)
    slowest = [save.slowest_rank for save in saves]
    found = [_cost(str(number), hosts[number], parts, slowest.count(number)) for number, parts in spent.items()]
    if len(found) <= MOST_RANKS:
        return tuple(found)
    found.sort(key=lambda one: (-((one.write or 0) + (one.sync or 0)), int(one.ranks)))
    shown, others = found[: MOST_RANKS - 1], found[MOST_RANKS - 1 :]
    return (*shown, _together(others))


def _together(others: Sequence[RankCost]) -> RankCost:
    values = {part: [v for one in others if (v := getattr(one, part)) is not None] for part in _PARTS}
    hosts = {one.host for one in others}
    where = f"{len(hosts):,} hosts" if len(hosts) > 1 else hosts.pop()
    return _cost(f"{len(others):,} others", where, values, sum(one.slowest for one in others))


def _cost(ranks: str, host: str, parts: Mapping[str, Sequence[float]], slowest: int) -> RankCost:
    snapshot, write, sync, index = (_median(parts[part]) for part in _PARTS)
    return RankCost(ranks, host, snapshot, write, sync, index, slowest)


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
