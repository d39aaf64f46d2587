"""Killed, or with a disk that fails, at the system calls of a save with Accelerate: the next start has the same end."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from keepstep.errors import KeepstepError
from keepstep.plan.layout import TRAINER
from keepstep.storage.survey import survey
from keepstep.storage.verify import verify_files
from keepstep.testing.faults import CALLS, Fail, Fault, Kill
from tests.rig import forks
from tests.rig.accelerated import Loop, train
from tests.rig.syscalls import Tracer, require_strace

WRITES = ("write", "pwrite64", "fsync", "rename", "mkdir", "link", "unlink", "rmdir", "renameat2")


def _job(folder: Path) -> dict[str, Any]:
    return train(Loop(str(folder), total=3, period=1, keep=1))


def _struck(tmp: Path, folder: Path, size: int, rank: int, hit: Fault | None) -> tuple[list[forks.Ended], Counter[str]]:
    folder.mkdir()
    ranks = forks.start(lambda: _job(folder), size)
    tracer = Tracer(ranks[rank], tmp / "trace", hit)
    for one in ranks:
        one.go()
    ended = forks.wait_all(ranks)
    return ended, tracer.counts()


def _judge(folder: Path, ended: list[forks.Ended], expected: list[Any], size: int, is_kill: bool) -> str:
    """What is wrong with how it ended, and with the start that follows; empty when nothing is."""
    errors = [end.error for end in ended if end.error is not None]
    if not is_kill and 0 < len(errors) < size:
        return f"{len(errors)} of {size} ranks failed"
    if not is_kill and len({str(one) for one in errors if isinstance(one, KeepstepError)}) > 1:
        return f"the ranks tell different things: {errors}"
    found = survey(folder, TRAINER)
    for one in found.checkpoints:
        if one.manifest is None or verify_files(one.path, one.manifest, one.manifest.files):
            return f"{one.path.name} is {one.found.condition.value}: {one.found.problem}"
    newest = max([0, *(one.found.step for one in found.complete)])
    for again, whole in zip(forks.run(lambda: _job(folder), size), expected, strict=True):
        if again.error is not None:
            return f"the next start failed: {again.error}"
        if again.value["start"] < newest:
            return f"the next start began at {again.value['start']}, and {newest} was committed"
        rows = {step: row for step, row in whole["rows"].items() if step > again.value["start"]}
        if again.value["rows"] != rows or again.value["weights"] != whole["weights"]:
            return "another end"
    return ""


def _try_all(tmp: Path, size: int, rank: int, error: str | None, every: int) -> None:
    require_strace(tmp)
    train(Loop(str(tmp / "warm"), total=1, period=1))
    expected = forks.values(lambda: _job(tmp / "reference"), size)
    ended, counts = _struck(tmp, tmp / "counted", size, rank, None)
    assert [end.status for end in ended] == [0] * size
    points = [(name, n) for name in (*WRITES, "openat") if name in CALLS for n in range(1, counts[name] + 1)][::every]
    seen, bad = Counter[str](), []
    for name, n in points:
        folder = tmp / f"{name}-{n}"
        hit: Fault = Kill(name, n) if error is None else Fail(name, n, error)
        ended, _ = _struck(tmp, folder, size, rank, hit)
        seen["killed"] += any(end.killed for end in ended)
        seen["an error"] += any(end.error is not None for end in ended)
        if problem := _judge(folder, ended, expected, size, error is None):
            bad.append(f"{error or 'killed'} at {name} {n} on rank {rank}: {problem}")
    print(f"\n{error or 'a kill'} on rank {rank} of {size}: {len(points)} points ({dict(seen)}), {len(bad)} bad")
    assert bad == []
    assert seen["killed" if error is None else "an error"]


@pytest.mark.parametrize(("size", "rank", "error", "every"), [(1, 0, None, 40), (1, 0, "ENOSPC", 60), (2, 1, None, 60)])
def test_some_faults(tmp_path: Path, size: int, rank: int, error: str | None, every: int) -> None:
    _try_all(tmp_path, size, rank, error, every)


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("error", [None, "ENOSPC", "EIO"])
@pytest.mark.parametrize(("size", "rank"), [(1, 0), (2, 0), (2, 1)])
def test_every_fault(tmp_path: Path, size: int, rank: int, error: str | None) -> None:
    _try_all(tmp_path, size, rank, error, every=1)
