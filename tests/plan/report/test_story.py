"""The whole of a report."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.plan.lock import Claim
from keepstep.plan.report.facts import CheckpointFact, Facts
from keepstep.plan.report.logged import Logged
from keepstep.plan.report.mirrors import mirrors_of
from keepstep.plan.report.pace import Pace
from keepstep.plan.report.records import record_of
from keepstep.plan.report.story import RunStory, story_of
from keepstep.plan.report.words import number_text, seconds_text, size_text, time_text
from keepstep.plan.scores import Measured


def summary(story: RunStory) -> dict[str, tuple[str, str]]:
    return {line.label: (line.value, line.detail) for line in story.summary}


def test_of_nothing() -> None:
    found = summary(story_of(Facts("run", "/run")))
    assert found["State"][0] == "not begun"
    assert found["Step"] == ("–", "no step is known")
    assert found["Best score"] == ("–", "no checkpoint was scored")
    assert found["Mirror"][0] == "none"


def test_of_a_run_under_way() -> None:
    saves: tuple[dict[str, Any], ...] = tuple(
        {"time": 100.0 * n, "step": 100 * n, "attempt": 1 if n < 3 else 2, "outcome": "saved", "mode": "sync"}
        | {"bytes": 5_000_000, "seconds": 3.0}
        for n in (1, 2, 2, 3, 4)
    )
    # Attempt 2 goes on from step 200 (its first row is of 300), so nothing was lost between them.
    story = story_of(
        Facts(
            "run",
            "/run",
            saves=saves,
            logged_step=450,
            checkpoints=(CheckpointFact(400, "save-400", "complete", size=5_000_100, attempt=2, digest="x"),),
            scores=(Measured(300, "d", "save-300", {"task/acc": 0.5}),),
            claim=Claim.HELD,
            holder="process 7 on x",
            total_steps=900,
        )
    )
    found = summary(story)
    assert found["State"] == ("running", "process 7 on x")
    assert found["Step"] == ("450", "of 900 (50 %), 7 min 30 s left at the last pace")
    assert found["Last save"] == ("step 400", "1970-01-01 00:06:40 UTC, 5.0 MB, the job waited 3.0 s")
    assert found["Time lost"][0] == "15.0 s"
    assert found["Best score"] == ("–", "not there any more (step 300); not scored yet (step 400)")
    assert story.sizes.last == 5_000_100


def test_the_best_of_what_is_there() -> None:
    checkpoints = (
        CheckpointFact(1, "a.ckpt", "complete", digest="a"),
        CheckpointFact(1, "last.ckpt", "complete", digest="last"),
        CheckpointFact(2, "save-2", "incomplete"),
    )
    scores = (Measured(1, "a", "a.ckpt", {"task/loss": 0.5}), Measured(2, "b", "save-2", {"task/loss": 0.25}))
    story = story_of(Facts("run", "/run", checkpoints=checkpoints, scores=scores))
    assert summary(story)["Best score"] == ("0.5", "step 1: the lowest task/loss of 1 eligible")
    assert story.scores.choice is not None
    assert [row.reason for row in story.scores.choice.rows][1:] == ["not scored yet", "not complete"]
    # Nobody counts attempts there, and nobody notes an end.
    assert story.state == "unknown"


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
STEPS = st.integers(0, 9) | ANYTHING
OUTCOMES = st.sampled_from(["saved", "failed", "skipped", "started", "finished", "mirrored", "not mirrored", "period"])
_TIMES = ("time", "seconds", "steps", "steps_seconds", "lost_seconds", "commit_seconds")
_OTHERS = ("ranks", "bytes", "mode", "loss", "slowest_rank", "address", "problem", "world_size")
ROWS = st.fixed_dictionaries(
    {"outcome": OUTCOMES | ANYTHING, "step": STEPS, "attempt": STEPS},
    optional=dict.fromkeys((*_TIMES, *_OTHERS), ANYTHING),
)


@given(st.lists(ROWS, max_size=8), st.dictionaries(st.integers(0, 9), ROWS, max_size=3), ROWS)
@settings(max_examples=25, deadline=None)
def test_no_rows_can_break_a_story(rows: list[dict[str, Any]], records: dict[int, Any], end: dict[str, Any]) -> None:
    story = story_of(Facts("run", "/run", saves=tuple(rows), logged=Logged(rows).series(), records=records, exit=end))
    assert len(story.summary) == 7
    keys = [(one.attempt or 0, one.step or 0) for one in story.events]
    assert keys == sorted(keys)
    assert [one.number for one in story.attempts] == sorted({one.number for one in story.attempts})


def test_mirrors() -> None:
    up = {"outcome": "mirrored", "address": "s3://a", "bytes": 10, "seconds": 2.0}
    down = {"outcome": "not mirrored", "address": "s3://a", "problem": "no network", "step": None}
    (found,) = mirrors_of([{**up, "step": 100}, {**up, "step": 200}, down], [100, 200, 300, 400])
    assert (found.newest, found.uploaded, found.waiting, found.failures, found.problem) == (200, 2, 2, 1, "no network")
    (found,) = mirrors_of([down, {**up, "step": 300}], [300])
    assert (found.waiting, found.problem) == (0, "")
    (found,) = mirrors_of([{"outcome": "mirrored", "bytes": "x", "seconds": -1, "address": 7}], [])
    assert (found.address, found.bytes, found.seconds, found.newest) == ("(no address)", 0, 0.0, None)


def test_what_changed_between_attempts() -> None:
    first = {"step": 1, "created_at": "x", "seed": 1, "torch": "2.9", "config": {"lr": 0.1, "a.b": 1}}
    found = record_of({1: first, 3: {**first, "torch": "2.13", "config": {"lr": 0.2, "a.b": 1}, "step": 2, "gpu": "h"}})
    assert [(one.before, one.after, one.field, one.was, one.now) for one in found.changes] == [
        (1, 3, "gpu", "(missing)", '"h"'),
        (1, 3, "torch", '"2.9"', '"2.13"'),
        (1, 3, "config.lr", "0.1", "0.2"),
    ]
    assert found.changes[1].effect == "results may differ in the last bits"
    assert [one.field for one in found.config] == ['config."a.b"', "config.lr"]


def test_a_record_that_is_none() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"x": deep or 1}
    assert record_of({1: deep}).attempt is None
    long = record_of({1: {"name": "x" * 10_000}})
    assert len(long.fields[0].value) == 300


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 ms"),
        (0.25, "250 ms"),
        (2.5, "2.5 s"),
        (60, "1 min 0 s"),
        (3599.6, "1 h 0 min"),
        (90_000, "1 d 1 h"),
        (None, "–"),
        (float("inf"), "–"),
    ],
)
def test_durations_in_words(seconds: float | None, words: str) -> None:
    assert seconds_text(seconds) == words


def test_other_words() -> None:
    assert [number_text(one) for one in (float("nan"), float("inf"), float("-inf"), 0.12345, None)] == [
        "NaN",
        "∞",
        "−∞",
        "0.1235",
        "–",
    ]
    assert [size_text(one) for one in (0, 999, 1000, 5e18)] == ["0 B", "999 B", "1.0 kB", "5000.0 PB"]
    assert [time_text(one) for one in (0.0, 1e30, None)] == ["1970-01-01 00:00:00", "–", "–"]


def test_pace_between_looks() -> None:
    pace = Pace()
    assert [pace.seen(0.0, None), pace.seen(1.0, 10), pace.seen(2.0, 10), pace.seen(3.0, 30)] == [
        None,
        None,
        None,
        10.0,
    ]
    assert pace.seen(4.0, 5) is None
    assert pace.seen(5.0, 6) == 1.0
