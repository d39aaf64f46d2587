"""Periods by a clock and by measured costs: the same steps on all ranks, whatever their clocks say."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import keepstep
from keepstep.checkpoint.period import FIRST_STEPS, AutoPeriod
from keepstep.dist.world import SingleWorld
from keepstep.storage.save_log import SaveLog
from keepstep.storage.survey import survey
from tests.rig import forks, tiny
from tests.rig.clocks import Clock, stopped_clock

SAVE_SECONDS = 5.0


def rows(folder: Path, *outcomes: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "run" / "saves.jsonl").read_text().splitlines()]
    return [row for row in found if row["outcome"] in outcomes]


def steps(folder: Path) -> list[int]:
    return [c.found.step for c in survey(folder / "run").complete]


def train(folder: Path, clock: Clock, last: int, step_seconds: tuple[float, ...], **config: Any) -> list[int]:
    """Returns the steps that were saved. Steps take what is told on each rank, saves 5 seconds."""
    settings = keepstep.CheckpointingConfig(save_dir=str(folder), num_to_keep=None, **config)
    model = nn.Linear(2, 2)
    saver = keepstep.Checkpointer(settings, keepstep.JobState(model=model), "run", last, world=forks.world)
    saver.before_save = lambda: clock.go_on(SAVE_SECONDS)
    saved = []
    with saver:
        for step in range(saver.resume() + 1, last + 1):
            clock.go_on(step_seconds[forks.world.rank])
            if saver.save_if_due(step):
                saved.append(step)
    return saved


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_minutes_are_those_of_the_main_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    clock = stopped_clock(monkeypatch)
    saved = forks.values(lambda: train(tmp_path, clock, 20, (7.0, 100.0), period_minutes=1, mode=mode), 2)
    assert saved == [[9, 18, 20]] * 2  # 63 seconds each, and the last step
    assert steps(tmp_path) == [9, 18, 20]


def test_a_step_that_takes_longer_than_the_period_is_saved_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = stopped_clock(monkeypatch)
    assert train(tmp_path, clock, 3, (600.0,), period_minutes=1) == [1, 2, 3]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_auto_adapts_to_what_saves_cost_and_all_ranks_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """At most 2 minutes: 115 steps of a second, and a save."""
    clock = stopped_clock(monkeypatch)
    auto: dict[str, Any] = {"period_steps": "auto", "max_loss_minutes": 2, "mode": mode}
    saved = forks.values(lambda: train(tmp_path, clock, 300, (1.0, 30.0), **auto), 2)
    assert saved[0] == saved[1]
    changes = rows(tmp_path, "period")
    assert [row["from"] for row in changes] == [10, 40]
    assert changes[0]["to"] == 40
    assert "on the way to 11" in changes[0]["reason"]
    assert "no failure rate is known; a crash is to cost 2 min at most" in changes[-1]["reason"]
    if mode == "sync":
        assert saved[0] == [10, 20, 60, 175, 290, 300]
        assert changes[-1]["to"] == 115
    assert [row["outcome"] for row in rows(tmp_path, "started", "finished")] == ["started", "finished"]


def test_an_attempt_goes_on_with_what_the_one_before_has_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second start goes on with its period; the third finds that the second was killed."""
    clock = stopped_clock(monkeypatch)
    auto: dict[str, Any] = {"period_steps": "auto", "max_loss_minutes": 60}

    def job(last: int, *, dies: bool = False) -> None:
        clock.now = 0.0  # another machine, another clock
        with monkeypatch.context() as patch:
            if dies:
                patch.setattr("keepstep.checkpoint.work_log.WorkLog.ended", lambda self, stopped: os._exit(9))
            train(tmp_path, clock, last, (1.0,), **auto)

    def changes() -> list[tuple[int, int]]:
        return [(row["from"], row["to"]) for row in rows(tmp_path, "period")]

    forks.values(lambda: job(60))
    assert changes() == [(10, 40), (40, 160)]
    forks.run(lambda: job(61, dies=True))
    assert steps(tmp_path) == [10, 20, 60, 61]
    assert changes()[2:] == [(160, 640), (640, 2560)]
    forks.values(lambda: job(62))
    ((before, now),) = changes()[4:]
    assert before == 2560
    assert now < 40
    assert "a failure comes every" in rows(tmp_path, "period")[-1]["reason"]
    starts = rows(tmp_path, "started", "finished")
    assert [(row["step"], row["attempt"]) for row in starts] == [(0, 1), (60, 1), (60, 2), (61, 3), (62, 3)]


def auto(folder: Path, minutes: float = 15.0) -> AutoPeriod:
    period = AutoPeriod(minutes, folder, SingleWorld())
    period.begin(0, 1)
    return period


def saved(step: int, seconds: float, each: float) -> dict[str, Any]:
    more = {"lost_seconds": seconds, "seconds": seconds, "steps": 10, "steps_seconds": 10 * each}
    return {"outcome": "saved", "mode": "sync", "step": step, "attempt": 1, **more}


def test_auto_begins_with_ten_steps_or_the_time_that_a_crash_may_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = stopped_clock(monkeypatch)
    period = auto(tmp_path)
    assert [step for step in range(30) if period.is_due(step, 25)] == [*range(FIRST_STEPS, 30)]
    clock.go_on(14 * 60)
    assert not period.is_due(3, None)
    clock.go_on(2 * 60)
    assert period.is_due(3, None)
    period.acted(3)
    assert not period.is_due(3, 3)
    assert period.is_due(4, 4)


def test_steps_that_become_slow_do_not_break_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = stopped_clock(monkeypatch)
    period = auto(tmp_path)
    for step in range(10, 100, 10):
        period.learn(saved(step, 5.0, 1.0))
    period.acted(100)
    assert period.steps == 895
    clock.go_on(890)
    assert not period.is_due(180, None)
    clock.go_on(10)
    assert period.is_due(181, None)


def test_small_differences_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_clock(monkeypatch)
    period = auto(tmp_path)
    for number in range(60):
        period.learn(saved(10 * number, 5.0, (0.95, 1.05)[number % 2]))
    changes = SaveLog(tmp_path).rows()
    assert [row["to"] for row in changes] == [40, 160, 640, period.steps]
    period.learn(saved(1000, 5.0, 1.0))
    assert len(SaveLog(tmp_path).rows()) == 4


def test_auto_leaves_a_period_at_once_that_makes_saves_wait_and_does_not_wander(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write takes 100 seconds and a tenth more or less, a step 0.1, and a crash is to cost a minute."""
    clock = stopped_clock(monkeypatch)
    period = auto(tmp_path, 1.0)
    for number in range(40):
        writing = {"mode": "async", "seconds": 100.0 + number % 3 * 5, "waited_seconds": 99.0 if number < 2 else 0.0}
        period.learn(saved(10 * number, 1.0, 0.1) | {"lost_seconds": 0.5 + writing["waited_seconds"]} | writing)
    (change,) = SaveLog(tmp_path).rows()
    assert (change["from"], change["to"]) == (10, 1128)
    assert "a tenth more than 1025 steps, since writing may take longer: no failure rate is known" in change["reason"]
    assert "writing a checkpoint takes 1.71 min" in change["reason"]
    period.acted(400)
    clock.go_on(104.0)
    assert not period.is_due(1200, None)
    clock.go_on(2.0)
    assert period.is_due(1220, None)


@pytest.mark.parametrize("kind", [{"period_minutes": 1}, {"period_steps": "auto", "max_loss_minutes": 1}])
def test_a_save_that_is_left_out_stays_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: dict[str, Any]
) -> None:
    clock = stopped_clock(monkeypatch)
    settings = keepstep.CheckpointingConfig(save_dir=str(tmp_path), mode="async", when_busy="skip", **kind)
    with keepstep.Checkpointer(settings, keepstep.JobState(model=nn.Linear(2, 2)), "run") as saver:
        saver.save(1)
        saver.wait()
        with monkeypatch.context() as patch:
            patch.setattr(type(saver._saver), "is_over", property(lambda self: False))
            for step in (2, 3, 4):
                clock.go_on(61.0 if step == 2 else 1.0)
                assert not saver.save_if_due(step)
        assert saver.save_if_due(5)
    assert [row["step"] for row in rows(tmp_path, "skipped")] == [2]


def test_a_job_that_does_not_resume_notes_its_start_and_its_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = stopped_clock(monkeypatch)
    settings = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps="auto")
    for begin in (0, 20):
        with keepstep.Checkpointer(settings, keepstep.JobState(model=nn.Linear(2, 2)), "run") as saver:
            saver.before_save = lambda: clock.go_on(SAVE_SECONDS)
            for step in range(begin + 1, begin + 21):
                clock.go_on(1.0)
                saver.save_if_due(step)
    told = [(row["outcome"], row["step"], row["attempt"]) for row in rows(tmp_path, "started", "period", "finished")]
    assert told[:3] == [("started", 0, 1), ("period", 20, 1), ("finished", 20, 1)]
    assert told[3:] == [("started", 20, 2), ("period", 21, 2), ("finished", 40, 2)]


@pytest.mark.parametrize("value", [10**400, -1, True, "x", 1.5, None])
def test_a_line_that_cannot_be_is_no_reason_to_stop(tmp_path: Path, value: Any) -> None:
    line = {"outcome": "saved", "mode": "sync", "step": value, "attempt": value, "seconds": value, "time": value}
    lines = [line | {"steps": 10**12, "steps_seconds": 1e-300}, line | {"steps": value, "lost_seconds": 1.0}] * 2
    lines += [{"outcome": "period", "to": value}, {"outcome": "started", "seconds": value}]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "saves.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    settings = keepstep.CheckpointingConfig(save_dir=str(tmp_path), period_steps="auto")
    with keepstep.Checkpointer(settings, keepstep.JobState(model=nn.Linear(2, 2)), "run") as saver:
        assert [step for step in range(saver.resume() + 1, 12) if saver.save_if_due(step)] == [10]


def test_a_log_that_cannot_be_read_is_no_reason_to_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "saves.jsonl").mkdir()
    assert auto(tmp_path).steps == FIRST_STEPS
    assert "what earlier saves took is not known" in caplog.text


def test_a_killed_job_that_goes_on_ends_as_one_that_saves_by_steps(tmp_path: Path) -> None:
    """Bits do not depend on when a job saves."""

    def die(step: int) -> None:
        if step == 13 and forks.world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(name: str, **settings: Any) -> list[dict[str, Any]]:
        return forks.values(lambda: tiny.train(tiny.Tiny(str(tmp_path / name), total=14, **settings)), 2)

    kinds: dict[str, dict[str, Any]] = {"auto": {"period": "auto"}, "minutes": {"period": None, "minutes": 1e-9}}
    twin = run("twin")
    for (name, kind), start in zip(kinds.items(), (10, 12), strict=True):
        job = tiny.Tiny(str(tmp_path / name), total=14, on_step=die, **kind)
        forks.run(lambda job=job: tiny.train(job), 2)  # type: ignore[misc]
        ended = run(name, **kind)
        assert [one["start"] for one in ended] == [start] * 2
        assert [{**one, "start": 0} for one in ended] == twin
