"""A machine that dies in the middle of a save, and does not come back."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint.peers import copying
from keepstep.checkpoint.peers.hosts import HOST_VARIABLE
from keepstep.checkpoint.save import SaveRequest
from keepstep.dist.wire import Wire
from tests.rig import forks, tiny
from tests.rig.machines import BATCH, Machines, without_start

TOTAL, PERIOD, STRUCK = 9, 3, 6
JOB = tiny.Tiny("", total=TOTAL, period=PERIOD)


@pytest.fixture(scope="module")
def twins() -> Callable[[int, Path], list[dict[str, Any]]]:
    """The same job, never stopped; made once for each number of ranks."""
    made: dict[int, list[dict[str, Any]]] = {}

    def twin(size: int, tmp_path: Path) -> list[dict[str, Any]]:
        if size not in made:
            job = replace(JOB, save_dir=str(tmp_path / "twin"), batch=BATCH)
            made[size] = forks.values(lambda: tiny.train(job), size)
        return made[size]

    return twin


def is_at(request: SaveRequest, *names: str) -> bool:
    return request.step == STRUCK and os.environ[HOST_VARIABLE] in names


def strike(monkeypatch: pytest.MonkeyPatch, machines: Machines, where: Any, method: str, *names: str) -> None:
    """These machines die before they call `method` for the save that is struck."""
    original = getattr(where, method)

    def struck(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(one, SaveRequest) and is_at(one, *names) for one in args):
            machines.die(os.environ[HOST_VARIABLE])
        return original(*args, **kwargs)

    monkeypatch.setattr(where, method, struck)


@pytest.mark.parametrize(
    ("sizes", "method", "left"),
    [
        ((2, 2), "copy", 3),
        *(
            pytest.param(sizes, method, left, marks=pytest.mark.crash)
            for sizes in [(2, 2), (1, 1, 1)]
            for method, left in [("prepare", 3), ("copy", 3), ("commit", 3), ("retain", STRUCK)]
        ),
    ],
)
def test_it_goes_on_from_what_all_hosts_had_committed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    twins: Callable[[int, Path], list[dict[str, Any]]],
    sizes: tuple[int, ...],
    method: str,
    left: int,
) -> None:
    machines = Machines(tmp_path, sizes)
    with monkeypatch.context() as patched:
        strike(patched, machines, copying.FolderPerHost, method, "b")
        ended = machines.run(JOB)
    assert all(end.status != 0 for end in ended)
    assert [end.killed for end in ended] == [machines.name(rank) == "b" for rank in range(sum(sizes))]
    machines.wipe("b")
    again = machines.values(JOB)
    assert {one["start"] for one in again} == {left}
    assert without_start(again) == without_start(twins(sum(sizes), tmp_path))


@pytest.mark.parametrize(
    ("sizes", "dying", "left"),
    [
        # The first has renamed: it holds all of two machines, but of three only two thirds.
        pytest.param((2, 2), "b", STRUCK, marks=pytest.mark.crash),
        ((1, 1, 1), "b", STRUCK),
        ((1, 1, 1), "bc", 3),
    ],
)
def test_a_death_between_two_renames(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    twins: Callable[[int, Path], list[dict[str, Any]]],
    sizes: tuple[int, ...],
    dying: str,
    left: int,
) -> None:
    machines = Machines(tmp_path, sizes)
    original = copying.put_in_place
    first = machines.run_folder("a") / f"save-{STRUCK}"

    def put_in_place(request: SaveRequest, **more: Any) -> None:
        if is_at(request, *dying):
            deadline = time.monotonic() + 20
            while not first.exists():
                assert time.monotonic() < deadline
                time.sleep(0.001)
            machines.die(os.environ[HOST_VARIABLE])
        original(request, **more)

    with monkeypatch.context() as patched:
        patched.setattr(copying, "put_in_place", put_in_place)
        assert all(end.status != 0 for end in machines.run(JOB))
    assert first.exists()
    assert not (machines.run_folder("b") / f"save-{STRUCK}").exists()
    machines.wipe("b")
    again = machines.values(JOB)
    assert {one["start"] for one in again} == {left}
    assert without_start(again) == without_start(twins(sum(sizes), tmp_path))


def test_a_peer_that_dies_while_it_is_sent_to_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines = Machines(tmp_path, (1, 1))
    original = Wire.exchange

    def exchange(self: Wire, sends: Any, takes: Any) -> None:
        if os.environ[HOST_VARIABLE] == "b":
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, sends, takes)

    monkeypatch.setattr(Wire, "exchange", exchange)
    started = time.monotonic()
    a, b = machines.run(JOB)
    assert b.killed
    assert a.status == 1
    assert time.monotonic() - started < forks.TIMEOUT.total_seconds()
    assert machines.steps("a") == []


@pytest.mark.parametrize("sizes", [(2, 2), (1, 1, 1)])
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.crash
def test_machines_lost_at_random_moments(tmp_path: Path, sizes: tuple[int, ...], mode: str) -> None:
    machines, number = Machines(tmp_path, sizes), random.Random(len(sizes))
    names, size = machines.names[: len(sizes)], sum(sizes)
    job = tiny.Tiny("", total=60, period=1, mode=mode, log=str(tmp_path / "log"), on_step=lambda step: time.sleep(0.01))
    safe, lost_steps = 0, []
    for turn in range(10):
        seen = len(steps_run(job))
        ranks = machines.start(job)
        for rank in ranks:
            rank.go()
        wait_for(lambda seen=seen: len(steps_run(job)) > seen + 1)  # type: ignore[misc]
        time.sleep(number.uniform(0.0, 0.1))
        dying = number.choice(names)
        # In the background those who are spared wait for half a minute for a sign of life.
        spared = number.random() < 0.5 and (mode == "sync" or turn == 0)
        before = min(max(machines.steps(name), default=0) for name in names)
        for position, rank in enumerate(ranks):
            if machines.name(position) == dying or not spared:
                rank.kill()
        forks.wait_all(ranks)
        machines.wipe(dying)
        assert steps_run(job)[seen] > safe
        lost_steps.append(steps_run(job)[-1] - before)
        safe = before
    ended = machines.values(job)
    whole = forks.values(lambda: tiny.train(replace(job, save_dir=str(tmp_path / "twin"), batch=BATCH)), size)
    assert without_start(ended) == without_start(whole)
    tiny.read_log(str(tmp_path / "log"), size)  # a step that ran twice ran the same way
    print(f"{sizes} {mode}: 10 machines lost; steps that ran again after each: {lost_steps}")


def steps_run(job: tiny.Tiny) -> list[int]:
    log = Path(f"{job.log}.0")
    return [json.loads(line)[0] for line in log.read_text().splitlines()] if log.exists() else []


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the job does not get on"
        time.sleep(0.002)
