"""A kill at the n-th system call of a save: never a failure, never another result, never an older step."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from keepstep.checkpoint import save as save_module
from keepstep.dist import background
from keepstep.storage.local import remove_tree
from keepstep.testing.faults import CrashReport
from tests.rig import forks, tiny
from tests.rig.matrix import Subject, newest_complete, run_matrix
from tests.rig.syscalls import require_strace


def _job(folder: Path) -> dict[str, Any]:
    # Two saves and a deletion.
    return tiny.train(tiny.Tiny(str(folder), total=4, period=2, keep=1, log=str(folder / "log")))


def _job_in_background(folder: Path) -> dict[str, Any]:
    background.PATIENCE_SECONDS = 1.5
    os.environ["PATH"] = ""  # the tracer follows threads, and so would follow git, which is asked for the commit
    job = tiny.Tiny(str(folder), total=4, period=2, keep=1, log=str(folder / "log"), mode="async")
    return tiny.train(job)


def _check_log(size: int) -> Any:
    def check(reference: Path, folder: Path) -> None:
        assert tiny.read_log(str(folder / "log"), size) == tiny.read_log(str(reference / "log"), size)

    return check


def _subject(size: int, **more: Any) -> Subject:
    return Subject(_job, newest_complete, _check_log(size), **more)


def _judge(matrix: CrashReport, title: str) -> None:
    print(f"\n{title}: {matrix}")
    assert matrix.bad == []
    assert matrix.not_killed == 0
    assert {"write", "openat", "fsync", "rename", "mkdir"} <= set(matrix.calls)


@pytest.fixture(scope="module", autouse=True)
def _traceable(tmp_path_factory: pytest.TempPathFactory) -> None:
    tmp_path = tmp_path_factory.mktemp("traceable")
    require_strace(tmp_path)
    # Whatever torch imports late is imported now, and is no system call of a save.
    forks.values(lambda: None, 1)
    tiny.train(tiny.Tiny(str(tmp_path / "warm"), total=2, period=1))
    tiny.train(tiny.Tiny(str(tmp_path / "warm"), total=4, period=1))
    tiny.train(tiny.Tiny(str(tmp_path / "warm in background"), total=2, period=1, mode="async"))


def test_some_kills_of_one_process(tmp_path: Path) -> None:
    _judge(run_matrix(_subject(1, skips_reads=True), tmp_path, every=5), "1 process")


@pytest.mark.parametrize(("rank", "every"), [(0, 9), (1, 6)])  # rank 1 has fewer calls
def test_some_kills_of_each_of_two_ranks(tmp_path: Path, rank: int, every: int) -> None:
    matrix = run_matrix(_subject(2, skips_reads=True), tmp_path, size=2, rank=rank, every=every)
    print(f"\nrank {rank} of 2: {matrix}")
    assert matrix.bad == []
    assert matrix.not_killed == 0


@pytest.mark.parametrize(("size", "rank"), [(1, 0), (2, 0)])
def test_some_kills_while_saves_go_on_in_the_background(tmp_path: Path, size: int, rank: int) -> None:
    subject = Subject(_job_in_background, newest_complete, _check_log(size), skips_reads=True)
    _judge_threads(run_matrix(subject, tmp_path, size=size, rank=rank, every=9 * size, threads=True), size, rank)


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("size", "rank"), [(1, 0), (2, 0), (2, 1)])
def test_every_kill_while_saves_go_on_in_the_background(tmp_path: Path, size: int, rank: int) -> None:
    subject = Subject(_job_in_background, newest_complete, _check_log(size))
    _judge_threads(run_matrix(subject, tmp_path, size=size, rank=rank, threads=True), size, rank)


def _judge_threads(matrix: CrashReport, size: int, rank: int) -> None:
    print(f"\nasync, rank {rank} of {size}: {matrix}")
    assert matrix.bad == []
    # How a thread's calls are counted depends on who is first; nearly all points must be reached all the same.
    assert matrix.not_killed <= max(1, matrix.points // 10)


@pytest.mark.crash
@pytest.mark.timeout(1800)
def test_every_kill_of_one_process(tmp_path: Path) -> None:
    _judge(run_matrix(_subject(1), tmp_path), "1 process")


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rank", [0, 1])
def test_every_kill_of_each_of_two_ranks(tmp_path: Path, rank: int) -> None:
    matrix = run_matrix(_subject(2), tmp_path, size=2, rank=rank)
    print(f"\nrank {rank} of 2: {matrix}")
    assert matrix.bad == []
    assert matrix.not_killed == 0


def _broken_job(folder: Path) -> dict[str, Any]:
    """A saver as one finds them: the final name comes first, no manifest, no sync, the newest name is taken."""
    weight = torch.zeros(1000)
    steps = [int(name.removeprefix("save-")) for name in os.listdir(folder) if name.startswith("save-")]
    start = max(steps, default=0)
    if start:
        weight = torch.load(folder / f"save-{start}" / "weights.pt")
        assert json.loads((folder / f"save-{start}" / "state.json").read_text())["step"] == start
    for step in range(start + 1, 3):
        weight += step
        target = folder / f"save-{step}"
        target.mkdir()
        torch.save(weight, target / "weights.pt")
        (target / "state.json").write_text(json.dumps({"step": step}))
    return {"start": start, "weight": weight.tolist()}


def test_the_matrix_finds_a_broken_saver(tmp_path: Path) -> None:
    matrix = run_matrix(Subject(_broken_job, lambda folder: 0), tmp_path)
    print(f"\nplanted broken saver: {matrix}")
    assert len(matrix.bad) >= 3
    assert any("the resume failed" in problem for problem in matrix.bad)


def _job_that_deletes_first(folder: Path) -> dict[str, Any]:
    """It makes room for the new checkpoint before that is committed. A kill in between leaves none, and no trace."""
    commit = save_module._commit

    def broken(request: Any, *rest: Any) -> None:
        if request.step == 4:
            (request.folder / "save-2").rename(request.folder / ".save-2.del-1")
            remove_tree(request.folder / ".save-2.del-1")
        commit(request, *rest)

    save_module._commit = broken
    return _job(folder)


def test_the_matrix_finds_a_saver_that_deletes_before_it_commits(tmp_path: Path) -> None:
    subject = Subject(_job_that_deletes_first, newest_complete, skips_reads=True)
    matrix = run_matrix(subject, tmp_path, every=5)
    print(f"\nplanted early deletion: {matrix}")
    assert any("resumed from 0, but 2 was committed" in problem for problem in matrix.bad)
