"""Signals at random moments, doubled, tripled, and a SIGKILL on top: a clean checkpoint or the one before it."""

import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from keepstep.errors import StopRequested
from keepstep.storage.survey import survey
from tests.rig import forks, tiny

PERIOD = 4
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def _job(folder: Path, mode: str, total: int) -> dict[str, Any]:
    return tiny.train(tiny.Tiny(str(folder), total=total, period=PERIOD, keep=2, log=str(folder / "log"), mode=mode))


def _newest(folder: Path) -> int:
    return max([0, *(c.found.step for c in survey(folder / "tiny").complete)])


def _strike(
    folder: Path, size: int, mode: str, total: int, rng: random.Random, seconds: float, seen: Counter[str]
) -> None:
    """Start the job, send one to three signals (perhaps a SIGKILL last), and judge how it ended."""
    before = _newest(folder)
    ranks = forks.start(lambda: _job(folder, mode, total), size)
    for rank in ranks:
        rank.go()
    time.sleep(rng.uniform(0, seconds))
    kill = rng.random() < 0.2
    number, targets = rng.choice(STOPS), ranks if rng.random() < 0.5 else [rng.choice(ranks)]
    for _ in range(rng.choice([1, 2, 3])):
        for target in targets:
            target.kill(number)
        time.sleep(rng.choice([0, 0.001, 0.05]))
    if kill:
        for rank in ranks:
            rank.kill()
    ended = forks.wait_all(ranks)
    after = _newest(folder)
    assert after >= before, f"the newest checkpoint was {before} and is {after}"
    if kill:
        seen["killed"] += 1
        return
    # A process that had not begun to listen yet ends by the signal; its peers hear of that.
    if any(end.status < 0 for end in ended):
        seen["before it listened"] += 1
        return
    errors = [end.error for end in ended if end.error is not None]
    if not errors:
        seen["finished"] += 1
        assert after == total
        return
    assert all(isinstance(error, StopRequested) for error in errors), errors
    assert {end.status for end in ended} == {75}
    assert {str(error) for error in errors} == {f"stopped at {after}"}
    seen["stopped"] += 1


def _storm(tmp: Path, size: int, mode: str, signals: int, seed: int, total: int = 60) -> Counter[str]:
    rng = random.Random(seed)
    reference = tmp / "reference"
    reference.mkdir()
    started = time.monotonic()
    expected = [_without_start(one) for one in forks.values(lambda: _job(reference, mode, total), size)]
    seconds = time.monotonic() - started
    seen: Counter[str] = Counter()
    runs = 0
    while sum(seen.values()) < signals:
        folder = tmp / f"run-{runs}"
        folder.mkdir()
        runs += 1
        while _newest(folder) < total and sum(seen.values()) < signals:
            _strike(folder, size, mode, total, rng, seconds, seen)
        assert [_without_start(one) for one in forks.values(lambda at=folder: _job(at, mode, total), size)] == expected
        assert tiny.read_log(str(folder / "log"), size) == tiny.read_log(str(reference / "log"), size)
    print(f"\n{mode}, {size} ranks: {signals} moments in {runs} runs: {dict(seen)}")
    return seen


def _without_start(value: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in value.items() if key != "start"}


@pytest.mark.parametrize(("size", "mode"), [(1, "sync"), (2, "async")])
def test_signals_at_some_moments(tmp_path: Path, size: int, mode: str) -> None:
    seen = _storm(tmp_path, size, mode, signals=12 // size, seed=size, total=24)
    assert seen["stopped"]


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("size", "mode"), [(1, "sync"), (2, "sync"), (1, "async"), (2, "async")])
def test_signals_at_200_moments(tmp_path: Path, size: int, mode: str) -> None:
    seen = _storm(tmp_path, size, mode, signals=200, seed=10 + size)
    assert seen["stopped"] >= 50
