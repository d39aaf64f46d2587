"""Attempts and events, put together from rows that may lie."""

from typing import Any

from keepstep.plan.fork import Fork
from keepstep.plan.lock import Claim
from keepstep.plan.report.attempts import Attempt, attempts_of, state_of
from keepstep.plan.report.events import Event, events_of
from keepstep.plan.report.facts import CheckpointFact, Facts, Moved
from keepstep.plan.report.pace import restart_seconds, seconds_per_step


def row(step: object, attempt: object, time: object = None, outcome: str = "saved", **more: Any) -> dict[str, Any]:
    return {"step": step, "attempt": attempt, "time": time, "outcome": outcome, **more}


def facts(*saves: dict[str, Any], **more: Any) -> Facts:
    return Facts("run", "/run", saves=saves, **more)


def told(found: Facts, logged: int | None = None) -> tuple[tuple[Attempt, ...], tuple[Event, ...]]:
    attempts = attempts_of(found, logged)
    return attempts, events_of(found, attempts)


def test_an_attempt_that_went_back_made_steps_again() -> None:
    found = facts(row(100, 1, 10.0), row(200, 1, 20.0), row(200, 2, 40.0), row(300, 2, 50.0))
    attempts, events = told(found)
    assert [(one.number, one.start, one.end, one.saves, one.redone) for one in attempts] == [
        (1, 0, 200, 2, 100),
        (2, 100, 300, 2, 0),
    ]
    assert [(e.attempt, e.step, e.kind) for e in events] == [
        (1, 100, "saved"),
        (1, 200, "saved"),
        (2, 100, "resumed"),
        (2, 200, "saved"),
        (2, 300, "saved"),
    ]
    assert attempts[0].outcome == "attempt 2 went on from step 100"


def test_a_row_of_a_start_is_believed() -> None:
    found = facts(
        row(0, 1, 0.0, "started", world_size=4), row(100, 1, 10.0), row(60, 2, 30.0, "started"), row(200, 2, 40.0)
    )
    attempts, events = told(found)
    assert [(one.start, one.redone, one.world_size) for one in attempts] == [(0, 40, 4), (60, 0, None)]
    assert [(e.attempt, e.step, e.kind) for e in events if e.kind in ("started", "resumed")] == [
        (1, 0, "started"),
        (2, 60, "resumed"),
    ]


def test_a_parent_of_the_first_checkpoint_tells_where_an_attempt_began() -> None:
    kept = (
        CheckpointFact(100, "save-100", "complete", attempt=1, world_size=2),
        CheckpointFact(300, "save-300", "complete", attempt=3, parent_step=100),
    )
    attempts, _ = told(facts(checkpoints=kept))
    assert [(one.number, one.start, one.end, one.world_size) for one in attempts] == [
        (1, 0, 100, 2),
        (3, 100, 300, None),
    ]


def test_logged_steps_belong_to_the_last_attempt() -> None:
    attempts, _ = told(facts(row(100, 1), row(200, 2)), logged=250)
    assert [one.end for one in attempts] == [100, 250]


def test_events_are_in_the_order_of_steps_when_the_clock_goes_back() -> None:
    found = facts(row(100, 1, 5000.0), row(200, 1, 1400.0), row(300, 1, 1410.0))
    attempts, events = told(found)
    assert [(e.step, e.kind) for e in events] == [
        (100, "saved"),
        (200, "saved"),
        (200, "clock went back"),
        (300, "saved"),
    ]
    assert events[2].detail.startswith("by 1 h 0 min")
    assert (attempts[0].began, attempts[0].ended) == (None, None)
    assert seconds_per_step(found.saves) == 0.1


def test_saves_that_failed_or_were_left_out() -> None:
    _, events = told(facts(row(100, 1), row(150, 1, None, "failed", problem="disk full"), row(160, 1, None, "skipped")))
    assert [(e.step, e.kind, e.detail) for e in events[1:]] == [
        (150, "save failed", "disk full"),
        (160, "save skipped", ""),
    ]


def test_an_upload_that_ends_late_is_no_clock_that_went_back() -> None:
    found = facts(
        row(100, 1, 10.0), row(200, 1, 20.0), row(100, 1, 25.0, "mirrored", address="s3://b"), row(300, 1, 30.0)
    )
    _, events = told(found)
    assert [(e.step, e.kind) for e in events] == [(100, "saved"), (100, "mirrored"), (200, "saved"), (300, "saved")]


def test_what_a_newer_version_writes_is_shown_by_its_name() -> None:
    _, events = told(
        facts(row(100, 1), row(100, 1, None, "period", reason="saves got cheaper"), row(None, 1, None, ""))
    )
    assert [(e.step, e.kind, e.detail) for e in events if e.kind != "saved"] == [
        (None, "unknown", ""),
        (100, "period", "saves got cheaper"),
    ]


def test_rows_without_sense_harm_nothing() -> None:
    odd: list[Any] = [[], {}, "x", -5, 1.5, None, True, 10**30]
    rows = [row(step, attempt, step, str(step)) for step in odd for attempt in odd]
    rows += [row(step, 1, time=step, ranks=step, problem=step) for step in odd]
    attempts, events = told(facts(*rows))
    assert [one.number for one in attempts] == [1]
    assert len(events) >= len(rows)


def test_forks_moves_and_the_end() -> None:
    found = facts(
        row(100, 1),
        row(200, 2),
        forks=(Fork("run.fork-1", 150),),
        moved=(Moved(200, 2, "quarantine", "a file is missing"),),
        exit={"outcome": "failed", "error": "ValueError: no", "time": 9.0},
    )
    _, events = told(found)
    rest = {e.kind: (e.attempt, e.step, e.detail) for e in events if e.kind != "saved"}
    assert rest["forked"] == (2, 150, "run.fork-1 was begun from here")
    assert rest["moved"] == (2, 200, "checkpoint in quarantine: a file is missing")
    assert rest["ended"] == (2, 200, "failed: ValueError: no")


def test_rows_tell_how_attempts_ended_and_what_starts_took() -> None:
    found = facts(
        row(0, 1, 0.0, "started", seconds=9.0),
        row(100, 1, 10.0),
        row(100, 1, 11.0, "stopped"),
        row(100, 2, 20.0, "started", seconds=4.0),
        row(150, 2, 30.0),
        row(150, 3, 40.0, "started", seconds=5.5),
        row(200, 3, 50.0),
        row(200, 3, 51.0, "finished"),
        exit={"outcome": "finished", "code": 0, "time": 51.0},
    )
    attempts, events = told(found)
    assert [one.outcome for one in attempts] == [
        "stopped; attempt 2 went on from step 100",
        "died; attempt 3 went on from step 150",
        "finished",
    ]
    assert [(e.attempt, e.step) for e in events if e.kind == "died"] == [(2, 150)]
    assert [(e.attempt, e.step, e.detail) for e in events if e.kind == "ended"] == [
        (1, 100, "stopped"),
        (3, 200, "finished"),
    ]
    assert restart_seconds(found.saves) == 9.5
    assert state_of(facts(*found.saves), attempts_of(facts(*found.saves), None)[-1])[0] == "finished"


def test_a_checkpoint_that_the_log_lacks_was_saved() -> None:
    kept = (
        CheckpointFact(100, "save-100", "complete", attempt=1),
        CheckpointFact(200, "save-200", "complete", attempt=1),
    )
    _, events = told(facts(row(100, 1), checkpoints=kept))
    assert [(e.step, e.kind) for e in events] == [(100, "saved"), (200, "saved")]


def test_states() -> None:
    last = attempts_of(facts(row(100, 1)), None)[-1]
    assert state_of(facts(claim=Claim.HELD, holder="process 7"), last) == ("running", "process 7")
    assert state_of(facts(claim=Claim.UNKNOWN, holder="x"), last)[0] == "running or lost"
    assert state_of(facts(exit={"outcome": "stopped"}), last) == ("stopped", "")
    assert state_of(facts(total_steps=100), last)[0] == "complete"
    assert state_of(facts(total_steps=101), last)[0] == "not running"
    assert state_of(facts(), None)[0] == "not begun"


def test_pace_is_of_saves_of_one_attempt() -> None:
    assert seconds_per_step([row(10, 1, 0.0), row(20, 1, 5.0), row(30, 2, 500.0), row(40, 2, 505.0)]) == 0.5
    assert seconds_per_step([row(10, 1, 0.0), row(20, 2, 5.0)]) is None
    assert seconds_per_step([row(10, 1, 9.0), row(20, 1, 5.0), row(20, 1, 6.0), row(None, 1, 7.0)]) is None
    work = {"steps": 10, "steps_seconds": 20.0, "lost_seconds": 5.0}
    assert seconds_per_step([row(10, 1, 0.0), row(20, 1, 1.0, **work)]) == 2.5
