"""How far the mirrors of a run are, by what its log of saves says: nothing is asked over a network."""

from collections.abc import Sequence
from dataclasses import dataclass

from keepstep.plan.report.facts import MIRRORED, NOT_MIRRORED, Row, finite, text, whole


@dataclass(frozen=True)
class Mirror:
    """One mirror.

    Attributes:
        address: where it is.
        uploaded: steps that were uploaded, and not by how many attempts.
        newest: the highest of them.
        waiting: complete checkpoints in the folder beyond the newest uploaded one.
        bytes, seconds: of all uploads.
        problem: of the last row, if that tells of a failure; `failures` counts all.
    """

    address: str
    uploaded: int
    newest: int | None
    waiting: int
    bytes: int
    seconds: float
    failures: int
    problem: str


def mirrors_of(rows: Sequence[Row], complete: Sequence[int]) -> tuple[Mirror, ...]:
    """What rows tell of each mirror; `complete`: steps of the complete checkpoints in the folder."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("outcome") in (MIRRORED, NOT_MIRRORED):
            found.setdefault(text(row.get("address")) or "(no address)", []).append(row)
    return tuple(_mirror(address, group, complete) for address, group in found.items())


def _mirror(address: str, rows: Sequence[Row], complete: Sequence[int]) -> Mirror:
    done = [row for row in rows if row.get("outcome") == MIRRORED]
    steps = {step for row in done if (step := whole(row.get("step"))) is not None}
    newest = max(steps, default=None)
    last = rows[-1]
    return Mirror(
        address=address,
        uploaded=len(steps),
        newest=newest,
        waiting=sum(newest is None or step > newest for step in complete),
        bytes=sum(whole(row.get("bytes")) or 0 for row in done),
        seconds=sum(max(0.0, finite(row.get("seconds")) or 0.0) for row in done),
        failures=len(rows) - len(done),
        problem=text(last.get("problem")) if last.get("outcome") == NOT_MIRRORED else "",
    )
