"""An error of the disk at each call of a save, on each rank: one error everywhere, nothing damaged."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from keepstep.errors import KeepstepError
from keepstep.ops.verify import verify
from keepstep.storage.survey import survey
from keepstep.testing.faults import Fail
from tests.rig import forks, tiny
from tests.rig.syscalls import Tracer, require_strace

CALLS = ("pwrite64", "write", "fsync", "rename", "mkdir", "link", "openat")


def _job(folder: Path) -> dict[str, Any]:
    return tiny.train(tiny.Tiny(str(folder), total=4, period=2, keep=1, log=str(folder / "log")))


def _without_start(value: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in value.items() if key != "start"}


def _judge(folder: Path, ended: list[forks.Ended], expected: list[Any], size: int) -> str:
    """What is wrong with how it ended, and with the start that follows; empty when nothing is."""
    failed = [end for end in ended if end.error is not None]
    if failed and len(failed) < size:
        return f"{len(failed)} of {size} ranks failed"
    if len({str(end.error) for end in failed}) > 1 and all(isinstance(end.error, KeepstepError) for end in failed):
        return f"the ranks tell different things: {[str(end.error) for end in failed]}"
    for result in verify(folder / "tiny") if survey(folder / "tiny").checkpoints else ():
        if result.condition != "complete":
            return f"save-{result.step} is {result.condition}: {result.problems}"
    newest = max([0, *(c.found.step for c in survey(folder / "tiny").complete)])
    again = forks.run(lambda: _job(folder), size)
    for end in again:
        if end.error is not None:
            return f"the next start failed: {end.error}"
        if end.value["start"] < newest:
            return f"the next start began at {end.value['start']}, and {newest} was committed"
    return "" if [_without_start(end.value) for end in again] == expected else "another final state"


def _try_all(tmp: Path, size: int, rank: int, error: str, every: int) -> None:
    require_strace(tmp)
    forks.values(lambda: None, 1)
    tiny.train(tiny.Tiny(str(tmp / "warm"), total=4, period=1))
    expected = [_without_start(one) for one in forks.values(lambda: _job(tmp / "reference"), size)]
    ranks = forks.start(lambda: _job(tmp / "counted"), size)
    (tmp / "counted").mkdir()
    tracer = Tracer(ranks[rank], tmp / "trace")
    for one in ranks:
        one.go()
    assert [end.status for end in forks.wait_all(ranks)] == [0] * size
    counts = tracer.counts()
    points = [(name, n) for name in CALLS for n in range(1, counts[name] + 1)][::every]
    seen, bad = Counter[str](), []
    for name, n in points:
        folder = tmp / f"{name}-{n}"
        folder.mkdir()
        ranks = forks.start(lambda at=folder: _job(at), size)
        tracer = Tracer(ranks[rank], tmp / "trace", Fail(name, n, error))
        for one in ranks:
            one.go()
        ended = forks.wait_all(ranks)
        tracer.counts()
        seen["an error"] += any(end.error is not None for end in ended)
        seen["went on"] += all(end.error is None for end in ended)
        if problem := _judge(folder, ended, expected, size):
            bad.append(f"{error} at {name} {n} on rank {rank}: {problem}")
    print(f"\n{error} on rank {rank} of {size}: {len(points)} points ({dict(seen)}), {len(bad)} bad")
    assert bad == []
    assert seen["an error"]


@pytest.mark.parametrize(("size", "rank", "error"), [(1, 0, "ENOSPC"), (2, 1, "EIO")])
def test_some_errors(tmp_path: Path, size: int, rank: int, error: str) -> None:
    _try_all(tmp_path, size, rank, error, every=11)


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("size", "rank"), [(1, 0), (2, 0), (2, 1)])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_every_error(tmp_path: Path, size: int, rank: int, error: str) -> None:
    _try_all(tmp_path, size, rank, error, every=1)
