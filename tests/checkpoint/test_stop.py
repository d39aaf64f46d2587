"""Stop requests: noted, agreed, in time, and once."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import keepstep
from keepstep.checkpoint.stop import StopNotice, seconds_left
from keepstep.plan.space import time_is_short
from keepstep.storage.save_log import SaveLog
from keepstep.storage.survey import survey
from tests.rig import forks


def checkpointer(folder: Path, total: int | None = None, **config: Any) -> keepstep.Checkpointer:
    settings = {"save_dir": str(folder), "period_steps": 100, **config}
    state = keepstep.JobState(model=nn.Linear(4, 4))
    return keepstep.Checkpointer(keepstep.CheckpointingConfig(**settings), state, "run", total, world=forks.world)


def note(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run" / ".keepstep" / "exit.json").read_text())


def steps(folder: Path) -> list[int]:
    return [c.found.step for c in survey(folder / "run").complete]


def train(
    folder: Path, last: int = 50, at: int = 7, numbers: tuple[int, ...] = (15,), rank: int = 0, **config: Any
) -> Any:
    """Signals come to one rank at the step `at`; returns the step at which the job left, and whether it saved."""
    with checkpointer(folder, **config) as saver:
        start = saver.resume()
        for step in range(start + 1, last + 1):
            if step == at and forks.world.rank == rank:
                for number in numbers:
                    os.kill(os.getpid(), number)
            saved = saver.save_if_due(step)
            if saver.stop_requested:
                return step, saved
    return last, False


class TestNotice:
    def test_only_the_first_counts_and_the_handlers_come_back(self) -> None:
        def check() -> None:
            now = 10.0
            notice = StopNotice(lambda: now)
            before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)}
            notice.install()
            os.kill(os.getpid(), signal.SIGUSR2)
            now = 11.0
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            now = 12.5
            assert (notice.noted, notice.seconds_since) == (signal.SIGUSR2, 2.5)
            assert seconds_left(notice, 4.0) == 1.5
            notice.restore()
            assert {n: signal.getsignal(n) for n in before} == before

        forks.values(check)

    def test_a_handler_that_somebody_has_for_his_own_signal_stays(self) -> None:
        def check() -> None:
            came = []
            signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
            notice = StopNotice()
            notice.install()
            os.kill(os.getpid(), signal.SIGUSR1)
            assert (came, notice.noted) == ([signal.SIGUSR1], None)

        forks.values(check)

    def test_outside_the_main_thread_nothing_is_taken(self) -> None:
        before = signal.getsignal(signal.SIGTERM)
        notice = StopNotice()
        thread = threading.Thread(target=notice.install)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGTERM) is before

    def test_what_slurm_says_counts_where_nothing_is_configured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        notice = StopNotice()
        notice.noted = 15
        assert seconds_left(notice, None) is None
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 100))
        assert 97 <= (seconds_left(notice, None) or 0) <= 100
        notice.noted = None
        assert seconds_left(notice, 30.0) is None


def test_whether_time_is_short() -> None:
    assert not time_is_short([None, None], [40.0])
    assert not time_is_short([60.0, None], [40.0, 0.0])
    assert time_is_short([60.0, 10.0], [0.0, 40.0])
    assert not time_is_short([0.5], [0.0])


@pytest.mark.parametrize("numbers", [(15,), (2,), (10,), (12,), (2, 15), (15, 15, 10)])
def test_every_stop_signal_and_several_at_once_make_one_save(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    assert forks.values(lambda: train(tmp_path, numbers=numbers)) == [(7, True)]
    assert steps(tmp_path) == [7]
    assert (note(tmp_path)["outcome"], note(tmp_path)["code"], note(tmp_path)["saved_step"]) == ("stopped", 75, 7)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_signal_to_one_rank_stops_all_at_one_step(tmp_path: Path, rank: int, mode: str) -> None:
    stopped = forks.values(lambda: train(tmp_path, rank=rank, mode=mode, period_steps=3), 2)
    assert len(set(stopped)) == 1
    (at, saved) = stopped[0]
    assert saved
    assert steps(tmp_path)[-1] == at


def test_which_signals_count_is_configured(tmp_path: Path) -> None:
    def only(*names: str) -> Any:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        return train(tmp_path, numbers=(10,), stop_signals=names)

    assert forks.values(lambda: only("SIGTERM")) == [(50, False)]


@pytest.mark.parametrize(("grace", "saves"), [(60.0, True), (10.0, False)])
def test_a_save_that_would_be_cut_off_is_not_begun(
    tmp_path: Path, grace: float, saves: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Saves have taken 40 seconds here."""
    with checkpointer(tmp_path) as saver:
        saver.save(5)
    log = tmp_path / "run" / "saves.jsonl"
    line = SaveLog(log.parent).last_saved()
    log.write_text(json.dumps({**line, "seconds": 40.0}) + "\n")
    assert SaveLog(tmp_path / "run").last_saved()["seconds"] == 40.0
    assert forks.values(lambda: train(tmp_path, grace_seconds=grace), 2) == [(7, saves)] * 2
    assert steps(tmp_path) == ([5, 7] if saves else [5])
    told = note(tmp_path)
    assert (told["outcome"], told["saved_step"]) == ("stopped", 7 if saves else 5)
    assert ("a save takes 40 s" in told["not_saved_because"]) != saves


def test_long_work_between_steps_may_ask(tmp_path: Path) -> None:
    def evaluate() -> tuple[bool, bool, bool]:
        with checkpointer(tmp_path) as saver:
            saver.resume()
            before = saver.check_stop(0)
            if forks.world.rank == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            during = saver.check_stop(0)
            saved = saver.save_if_due(1)
            return before, during, saved

    assert forks.values(evaluate, 2) == [(False, True, True)] * 2
    assert steps(tmp_path) == [1]


def test_a_launcher_that_starts_a_stopped_job_again_does_not_make_it_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert forks.values(lambda: train(tmp_path), 2) == [(7, True)] * 2

    def again() -> tuple[int, bool]:
        with checkpointer(tmp_path) as saver:
            return saver.resume(), saver.stop_requested

    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert forks.values(again, 2) == [(7, True)] * 2
    # Somebody has started it anew: that is another launch.
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-2")
    assert forks.values(again, 2) == [(7, False)] * 2


def test_the_note_of_a_stop_goes_when_the_job_saves_again(tmp_path: Path) -> None:
    forks.values(lambda: train(tmp_path))
    assert note(tmp_path)["outcome"] == "stopped"
    with checkpointer(tmp_path) as saver:
        saver.resume()
        assert note(tmp_path)["outcome"] == "stopped"
        saver.save(9)
    assert not (tmp_path / "run" / ".keepstep" / "exit.json").exists()
