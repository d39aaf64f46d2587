"""`--restarts`: torch elastic starts each attempt; whether there is another is decided by how the last one ended."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from keepstep.cli import launcher
from keepstep.storage.attempt_note import note_begin, note_code, note_step
from tests.rig import jobs
from tests.rig.command import keepstep

Attempt = Callable[[], None]


def fail() -> None:
    raise ChildFailedError("keepstep", {0: ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file="")})


def crash() -> None:
    note_begin(4)
    note_step(5)
    fail()


def fail_at_the_start() -> None:
    note_begin(4)
    fail()


def fail_before() -> None:
    fail()


def finish() -> None:
    note_code(0)


def end_with(code: int) -> Attempt:
    def end() -> None:
        note_begin(4)
        note_step(5)
        note_code(code)
        fail()

    return end


def stop() -> None:
    note_begin(4)
    note_step(5)
    os.kill(os.getpid(), signal.SIGTERM)
    raise AssertionError("the handler raises")


def stopped_ranks_fail() -> None:
    try:
        stop()
    except SignalException:
        note_code(1)
        raise


@pytest.mark.parametrize(
    ("attempts", "restarts", "code"),
    [
        ([crash, crash, finish], 2, 0),
        ([crash, crash], 1, 1),
        ([crash], 0, 1),
        ([fail_before], 9, 1),
        ([crash, fail_at_the_start], 9, 1),
        ([end_with(2)], 9, 2),
        ([crash, end_with(3)], 9, 3),
        ([end_with(4)], 9, 4),
        ([crash, end_with(75)], 9, 75),
        ([crash, stop], 9, 75),
        ([crash, stopped_ranks_fail], 9, 1),
    ],
)
def test_each_attempt_that_may_help_is_made(
    monkeypatch: pytest.MonkeyPatch, attempts: list[Attempt], restarts: int, code: int
) -> None:
    left = list(attempts)
    runs = set()

    def fake(config: Any, command: str) -> Callable[..., None]:
        assert config.max_restarts == 0
        runs.add(config.run_id)
        return lambda *arguments: left.pop(0)()

    monkeypatch.setattr(launcher, "elastic_launch", fake)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    ended = 0
    try:
        launcher.launch(["train", "job.yaml"], 2, ["SIGTERM"], restarts)
    except typer.Exit as end:
        ended = end.exit_code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (ended, left) == (code, [])
    assert len(runs) == len(attempts), "torch elastic must not take one attempt for a restart of another"


def test_under_another_launcher_restarts_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(jobs.training(tmp_path).model_dump(mode="json")))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = keepstep("train", str(tmp_path / "job.yaml"), "--restarts", "3")
    assert done.returncode == 2
    assert "torchrun --max-restarts" in done.stderr
