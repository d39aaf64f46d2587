"""What saves cost."""

from typing import Any

from keepstep.plan.report.saves import MOST_RANKS, costs_of


def saved(step: int, ranks: list[Any], **more: Any) -> dict[str, Any]:
    return {"step": step, "attempt": 1, "outcome": "saved", "mode": "sync", "seconds": 2.0, "ranks": ranks, **more}


def rank(write: float, snapshot: float = 0.5) -> dict[str, Any]:
    return {"host": "a", "bytes": 10, "snapshot": snapshot, "write": write, "sync": 0.25, "index": 0.1}


def test_the_job_waits_for_all_of_a_save_or_for_its_snapshot() -> None:
    found = costs_of(
        [saved(1, [rank(1.0)]), saved(2, [rank(1.0), rank(2.0, 0.75)], mode="async"), saved(3, [], lost_seconds=4)]
    )
    assert [one.stall for one in found.saves] == [2.0, 0.75, 4.0]
    assert [one.write for one in found.saves] == [1.25, 2.25, None]
    assert found.stall == 6.75


def test_medians_of_each_rank() -> None:
    found = costs_of([saved(n, [rank(n), rank(10)], slowest_rank=1) for n in (1, 2, 9)])
    assert [(one.ranks, one.write, one.slowest) for one in found.ranks] == [("0", 2, 0), ("1", 10, 3)]


def test_a_thousand_ranks_are_told_together_but_for_the_slowest() -> None:
    ranks = [{**rank(1.0 + number % 7), "host": f"node-{number // 8}"} for number in range(1000)]
    ranks[500]["write"] = 60.0
    found = costs_of([saved(1, ranks, slowest_rank=500)])
    assert len(found.ranks) == MOST_RANKS
    assert (found.ranks[0].ranks, found.ranks[0].write, found.ranks[0].slowest) == ("500", 60.0, 1)
    assert (found.ranks[-1].ranks, found.ranks[-1].host) == ("985 others", "125 hosts")


def test_what_is_no_duration_is_not_known() -> None:
    odd = {"snapshot": "x", "write": -1, "sync": float("nan"), "index": True, "host": 7}
    found = costs_of([saved(1, [odd, 5, None], seconds=-3, commit_seconds=[], bytes=1.5, slowest_rank="0")])
    (one,) = found.saves
    assert (one.stall, one.write, one.commit, one.bytes, one.slowest_rank) == (None, None, None, None, None)
    assert found.series == ()
    assert [(r.ranks, r.write, r.host) for r in found.ranks] == [("0", None, ""), ("1", None, ""), ("2", None, "")]


def test_other_rows_cost_nothing() -> None:
    found = costs_of([{"outcome": "failed", "step": 1}, {"outcome": "saved"}, {"outcome": "skipped", "step": 2}])
    assert (found.saves, found.series, found.ranks, found.stall) == ((), (), (), 0)
