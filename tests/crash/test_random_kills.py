"""SIGKILL of one rank or of all at random moments of a run of four ranks, resumed each time: the same bits."""

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from keepstep.dist import background
from keepstep.storage.survey import survey
from tests.rig import forks, tiny

RANKS = 4


def _job(folder: Path, mode: str, total: int) -> dict[str, Any]:
    background.PATIENCE_SECONDS = 1.5
    return tiny.train(
        tiny.Tiny(str(folder), total=total, period=3, keep=2, batch=8, log=str(folder / "log"), mode=mode)
    )


def _newest(folder: Path) -> int:
    return max([0, *(c.found.step for c in survey(folder / "tiny").complete)])


def _kill(tmp: Path, mode: str, kills: int, total: int, seed: int) -> Counter[str]:
    rng = random.Random(seed)
    reference = tmp / "reference"
    reference.mkdir()
    started = time.monotonic()
    expected = [_without_start(one) for one in forks.values(lambda: _job(reference, mode, total), RANKS)]
    seconds = time.monotonic() - started
    seen: Counter[str] = Counter()
    while seen["one rank"] + seen["all ranks"] < kills:
        folder = tmp / f"run-{seen['runs']}"
        folder.mkdir()
        seen["runs"] += 1
        while _newest(folder) < total and seen["one rank"] + seen["all ranks"] < kills:
            before = _newest(folder)
            ranks = forks.start(lambda at=folder: _job(at, mode, total), RANKS)
            for rank in ranks:
                rank.go()
            time.sleep(rng.uniform(0, 0.5 * seconds))
            victims = ranks if rng.random() < 0.5 else [rng.choice(ranks)]
            for victim in victims:
                victim.kill()
            ended = forks.wait_all(ranks)
            assert _newest(folder) >= before
            if any(end.killed for end in ended):
                seen["all ranks" if len(victims) > 1 else "one rank"] += 1
        ended = forks.values(lambda at=folder: _job(at, mode, total), RANKS)
        assert [_without_start(one) for one in ended] == expected
        assert tiny.read_log(str(folder / "log"), RANKS) == tiny.read_log(str(reference / "log"), RANKS)
    print(f"\n{mode}, {RANKS} ranks, SIGKILL: {dict(seen)}, 0 other results")
    return seen


def _without_start(value: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in value.items() if key != "start"}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_some_random_kills(tmp_path: Path, mode: str) -> None:
    _kill(tmp_path, mode, kills=3, total=15, seed=3)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_200_random_kills(tmp_path: Path, mode: str) -> None:
    _kill(tmp_path, mode, kills=200, total=120, seed=4)
