"""What saves.jsonl says of a job's time, and of how its attempts ended."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import keepstep
from keepstep.plan.run_history import failures_of, measured_of
from tests.rig import forks
from tests.rig.clocks import Clock, stopped_clock


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "saves.jsonl").read_text().splitlines()]


def checkpointer(folder: Path, clock: Clock, total: int = 12, **config: Any) -> keepstep.Checkpointer:
    settings = keepstep.CheckpointingConfig(save_dir=str(folder), **{"period_steps": 5, **config})
    saver = keepstep.Checkpointer(
        settings, keepstep.JobState(model=nn.Linear(2, 2)), "run", total, handle_signals=False
    )
    saver.before_save = lambda: clock.go_on(3.0)
    return saver


def train(saver: keepstep.Checkpointer, clock: Clock, last: int) -> None:
    for step in range(saver.resume() + 1, last + 1):
        clock.go_on(100.0 if step == 1 else 2.0)
        saver.save_if_due(step)


def test_steps_and_saves_are_told_apart_and_the_first_step_is_a_part_of_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = stopped_clock(monkeypatch)
    with checkpointer(tmp_path, clock) as saver:
        train(saver, clock, 12)
    first, *saves, last = rows(tmp_path)
    assert (first["outcome"], first["step"], first["attempt"], first["world_size"]) == ("started", 0, 1, 1)
    assert first["seconds"] > 0
    told = [(row["outcome"], row["step"], row["lost_seconds"], row["steps"], row["steps_seconds"]) for row in saves]
    assert told == [("saved", 5, 3.0, 4, 8.0), ("saved", 10, 3.0, 5, 10.0), ("saved", 12, 3.0, 2, 4.0)]
    assert (last["outcome"], last["step"], last["steps"]) == ("finished", 12, 0)
    found = measured_of(rows(tmp_path))
    assert (found.step_seconds, found.save_seconds, found.period_steps) == (2.0, 3.0, 5)
    assert failures_of(rows(tmp_path)).failures == 0


def test_a_start_that_has_nothing_to_do_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = stopped_clock(monkeypatch)
    with checkpointer(tmp_path, clock, period_steps="auto") as saver:
        train(saver, clock, 12)
    before = rows(tmp_path)
    with checkpointer(tmp_path, clock, period_steps="auto") as saver:
        train(saver, clock, 12)
    assert rows(tmp_path) == before


@pytest.mark.parametrize(
    ("error", "failures"),
    [(None, 0), (keepstep.StopRequested("stop"), 0), (ValueError("a bug"), 1), (KeyboardInterrupt(), 1)],
)
@pytest.mark.parametrize("way", ["with", "finally"])
def test_how_an_attempt_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None, failures: int, way: str
) -> None:
    clock = stopped_clock(monkeypatch)

    def work(saver: keepstep.Checkpointer) -> None:
        train(saver, clock, 6)
        if error is not None:
            raise error

    def attempt() -> None:
        saver = checkpointer(tmp_path, clock)
        if way == "with":
            with saver:
                work(saver)
            return
        try:
            work(saver)
        finally:
            saver.close()

    if error is None:
        attempt()
    else:
        with pytest.raises(type(error)):
            attempt()
    with checkpointer(tmp_path, clock) as saver:
        train(saver, clock, 8)
    found = failures_of(rows(tmp_path))
    assert (found.attempts, found.failures) == (2, failures)


def test_the_start_of_a_second_run_in_a_process_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch)
    for name in ("first", "second"):
        with checkpointer(tmp_path / name, clock) as saver:
            clock.go_on(7.0)
            train(saver, clock, 1)
    assert rows(tmp_path / "second")[0]["seconds"] == 107.0


def test_waiting_for_the_save_before_is_neither_step_nor_cost_of_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand and then due at the same step; and due while another one is under way."""
    clock = stopped_clock(monkeypatch)
    with checkpointer(tmp_path, clock, 20, mode="async") as saver:
        saver.resume()
        wait = saver._saver.wait
        for step in range(1, 16):
            clock.go_on(2.0)
            if step == 5:
                assert saver.save(step)
            with monkeypatch.context() as patch:
                if step in (5, 10):
                    patch.setattr(type(saver._saver), "is_over", property(lambda self: False))
                    patch.setattr(saver._saver, "wait", lambda: (clock.go_on(50.0), wait()))
                assert saver.save_if_due(step) is (step in (10, 15))
            saver.wait()
    saves = [row for row in rows(tmp_path) if row["outcome"] == "saved"]
    told = [(row["step"], row["lost_seconds"], row.get("waited_seconds"), row["steps_seconds"]) for row in saves]
    assert told == [(5, 3.0, None, 8.0), (10, 53.0, 50.0, 10.0), (15, 3.0, None, 10.0)]
    assert measured_of(saves).save_seconds == 3.0


def test_a_killed_attempt_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch)

    def die() -> None:
        train(checkpointer(tmp_path, clock), clock, 7)
        os._exit(9)

    forks.run(die)
    with checkpointer(tmp_path, clock) as saver:
        train(saver, clock, 8)
    assert failures_of(rows(tmp_path)).failures == 1


def test_in_the_background_only_the_copying_is_lost_and_steps_beside_a_save_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = stopped_clock(monkeypatch)
    with checkpointer(tmp_path, clock, 20, mode="async") as saver:
        saver.resume()
        for step in range(1, 21):
            saver.wait()
            clock.go_on(2.0)
            is_busy = step in (6, 7)
            with monkeypatch.context() as patch:
                if is_busy:
                    clock.go_on(1.0)
                    patch.setattr(type(saver._saver), "is_over", property(lambda self: False))
                saver.save_if_due(step)
    saves = [row for row in rows(tmp_path) if row["outcome"] == "saved"]
    assert [row["lost_seconds"] for row in saves] == [3.0] * 4
    assert [row.get("busy_steps") for row in saves] == [None, 2, None, None]
    assert saves[1]["busy_seconds"] == 6.0
    assert measured_of(saves).save_seconds == 5.0
