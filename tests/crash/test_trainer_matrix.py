"""A kill, or an error of the disk, at the n-th system call of the saves of a Trainer: of transformers, and of TRL with
an adapter. The next start goes on from what was committed, and ends as one that was never stopped."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed")

from keepstep.checkpoint import folder_saver
from keepstep.checkpoint.background import PendingSave
from keepstep.dist import background
from keepstep.errors import KeepstepError
from keepstep.plan.layout import TRAINER
from keepstep.storage.survey import survey
from keepstep.storage.verify import verify_files
from keepstep.testing.faults import CALLS, Fail, Kill
from keepstep.testing.faults.calls import committed_step
from tests.rig import forks, trainer_jobs
from tests.rig.matrix import Subject, opened_for_writing, resume_problem, run_matrix, without_start
from tests.rig.syscalls import Tracer, count, require_strace

Job = Callable[[Path], dict[str, Any]]
RANKS = [(1, 0), (2, 0), (2, 1)]
WRITES = ("write", "pwrite64", "fsync", "rename", "mkdir", "link", "unlink", "rmdir", "renameat2", "ftruncate")


def _job(kind: str, mode: str = "sync", **options: Any) -> Job:
    """Two saves and a deletion, in a forked process."""

    def job(folder: Path) -> dict[str, Any]:
        os.environ["PATH"] = ""  # a tracer that follows threads would follow git, which is asked for the commit
        background.PATIENCE_SECONDS = 1.5
        return trainer_jobs.train(folder, kind, mode, **options)

    return job


@pytest.fixture(scope="module", autouse=True)
def _warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What libraries import late is imported now: it is no system call of a save."""
    folder = tmp_path_factory.mktemp("warm")
    require_strace(folder)
    for kind in trainer_jobs.KINDS:
        for mode in ("sync", "async"):
            for _ in range(2):
                trainer_jobs.train(folder / f"{kind}-{mode}", kind, mode)


def _kill(tmp: Path, kind: str, mode: str, size: int, rank: int, every: int) -> None:
    threads = mode == "async"
    matrix = run_matrix(
        Subject(_job(kind, mode), trainer_jobs.newest, skips_reads=True), tmp, size, rank, every, threads=threads
    )
    print(f"\n{kind}, {mode}, rank {rank} of {size}: {matrix}")
    assert matrix.bad == []
    assert {"openat", "write"} <= set(matrix.calls)
    assert rank or {"fsync", "rename", "mkdir"} <= set(matrix.calls)
    # How a thread's calls are counted depends on who is first; nearly all points must be reached all the same.
    assert matrix.not_killed <= (max(1, matrix.points // 10) if threads else 0)


@pytest.mark.parametrize(
    ("kind", "mode", "size", "rank", "every"),
    [("trainer", "sync", 1, 0, 25), ("adapter", "async", 1, 0, 45), ("trainer", "sync", 2, 1, 9)],
)
def test_some_kills(tmp_path: Path, kind: str, mode: str, size: int, rank: int, every: int) -> None:
    _kill(tmp_path, kind, mode, size, rank, every)


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("size", "rank"), RANKS)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("kind", trainer_jobs.KINDS)
def test_every_kill(tmp_path: Path, kind: str, mode: str, size: int, rank: int) -> None:
    _kill(tmp_path, kind, mode, size, rank, every=1)


def _at_gate(job: Job, rank: int, step: int, gate: Path) -> Job:
    """The same, whose thread that saves `step` in the background says its number at a gate, and waits for a tracer."""

    class Gated(PendingSave[Any]):
        def __init__(self, at: int, work: Callable[[], Any]) -> None:
            def traced() -> Any:
                if at == step:
                    own = threading.get_native_id()
                    gate.with_suffix(".new").write_text(str(own))
                    gate.with_suffix(".new").rename(gate)
                    while "TracerPid:\t0" in Path(f"/proc/self/task/{own}/status").read_text():
                        time.sleep(0.002)
                return work()

            super().__init__(at, traced)

    def gated(folder: Path) -> dict[str, Any]:
        if forks.world.rank == rank:
            folder_saver.PendingSave = Gated
        return job(folder)

    return gated


def _traced_thread(
    job: Job, folder: Path, size: int, rank: int, step: int, hit: Kill | None
) -> tuple[list[forks.Ended], Tracer]:
    folder.mkdir()
    gate = folder.with_suffix(".gate")
    ranks = forks.start(lambda: _at_gate(job, rank, step, gate)(folder), size)
    for one in ranks:
        one.go()
    deadline = time.monotonic() + 30
    while not gate.exists():
        assert time.monotonic() < deadline, "no thread came to its gate"
        time.sleep(0.002)
    tracer = Tracer(SimpleNamespace(pid=int(gate.read_text())), folder.with_suffix(".trace"), hit)  # type: ignore[arg-type]
    ended = forks.wait_all(ranks)
    tracer.wait()
    return ended, tracer


def _kill_thread(tmp: Path, kind: str, size: int, rank: int, every: int) -> None:
    """Kill at the calls of the thread that saves: where all threads are traced, those of the main thread go first."""
    job = _job(kind, "async")
    subject = Subject(job, trainer_jobs.newest)
    expected = [without_start(one) for one in forks.values(lambda: job(tmp / "reference"), size)]
    points, bad, calls = 0, [], Counter[str]()
    for step in range(trainer_jobs.PERIOD, trainer_jobs.TOTAL + 1, trainer_jobs.PERIOD):
        ended, tracer = _traced_thread(job, tmp / f"counted-{step}", size, rank, step, None)
        assert [one.status for one in ended] == [0] * size
        counts, writes = count(tracer.log), opened_for_writing(tracer.log)
        calls += counts
        kills = [Kill(name, n) for name in sorted(counts) for n in range(1, counts[name] + 1)]
        for kill in [kill for kill in kills if kill.call != "openat" or kill.n in writes][::every]:
            folder = tmp / f"{step}-{kill.call}-{kill.n}"
            ended, tracer = _traced_thread(job, folder, size, rank, step, kill)
            points += 1
            newest = max(trainer_jobs.newest(folder), committed_step(tracer.log))
            problem = resume_problem(subject, folder, newest, tmp / "reference", expected, size)
            if not ended[rank].killed or problem:
                bad.append(f"step {step}, killed at {kill.call} {kill.n} on rank {rank}: {problem or 'not killed'}")
    print(f"\n{kind}, the saving thread, rank {rank} of {size}: {points} kills ({dict(calls)}), {len(bad)} bad")
    assert bad == []
    assert points


def test_some_kills_of_the_thread_that_saves(tmp_path: Path) -> None:
    _kill_thread(tmp_path, "trainer", 1, 0, every=25)


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("size", "rank"), RANKS)
@pytest.mark.parametrize("kind", trainer_jobs.KINDS)
def test_every_kill_of_the_thread_that_saves(tmp_path: Path, kind: str, size: int, rank: int) -> None:
    _kill_thread(tmp_path, kind, size, rank, every=1)


def _fail(
    tmp: Path, kind: str, size: int, rank: int, error: str, every: int, mode: str = "sync", **options: Any
) -> None:
    job, threads = _job(kind, mode, **options), mode == "async"
    expected = forks.values(lambda: job(tmp / "reference"), size)
    _, counts = _struck(job, tmp, tmp / "counted", size, rank, None, threads)
    points = [(name, n) for name in WRITES if name in CALLS for n in range(1, counts[name] + 1)]
    points = [*points, *(("openat", n) for n in sorted(opened_for_writing(tmp / "trace")))][::every]
    seen, bad = Counter[str](), []
    for name, n in points:
        folder = tmp / f"{name}-{n}"
        ended, _ = _struck(job, tmp, folder, size, rank, Fail(name, n, error), threads)
        seen.update(sorted({type(end.error).__name__ for end in ended}))
        if problem := _problem(job, folder, ended, expected, size):
            bad.append(f"{error} at {name} {n} on rank {rank}: {problem}")
    print(f"\n{kind}, {mode}, {error} on rank {rank} of {size}: {len(points)} points ({dict(seen)}), {len(bad)} bad")
    assert bad == []
    assert seen["SaveError"]


def _struck(
    job: Job, tmp: Path, folder: Path, size: int, rank: int, hit: Fail | None, threads: bool
) -> tuple[list[forks.Ended], Counter[str]]:
    folder.mkdir()
    ranks = forks.start(lambda: job(folder), size)
    tracer = Tracer(ranks[rank], tmp / "trace", hit, threads=threads)
    for one in ranks:
        one.go()
    return forks.wait_all(ranks), tracer.counts()


def _problem(job: Job, folder: Path, ended: list[forks.Ended], expected: list[Any], size: int) -> str:
    """What is wrong with how it ended, and with the start that follows; empty when nothing is."""
    errors = [end.error for end in ended if end.error is not None]
    if 0 < len(errors) < size:
        return f"{len(errors)} of {size} ranks failed: {errors}"
    if len({str(one) for one in errors if isinstance(one, KeepstepError)}) > 1:
        return f"the ranks tell different things: {errors}"
    for one in survey(folder, TRAINER).checkpoints:
        if one.manifest is None or verify_files(one.path, one.manifest, one.manifest.files):
            return f"{one.path.name} is {one.found.condition.value}: {one.found.problem}"
    newest = trainer_jobs.newest(folder)
    for again, whole in zip(forks.run(lambda: job(folder), size), expected, strict=True):
        if again.error is not None:
            return f"the next start failed: {again.error}"
        if again.value["start"] != newest:
            return f"the next start began at {again.value['start']}, and {newest} was committed"
        if {**again.value, "start": 0} != whole:
            return "another end"
    return ""


@pytest.mark.parametrize(("size", "rank", "error"), [(1, 0, "ENOSPC"), (2, 1, "EIO")])
def test_some_errors(tmp_path: Path, size: int, rank: int, error: str) -> None:
    _fail(tmp_path, "trainer", size, rank, error, every=30 if size == 1 else 9)


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize(("size", "rank"), RANKS)
@pytest.mark.parametrize("kind", trainer_jobs.KINDS)
def test_every_error(tmp_path: Path, kind: str, size: int, rank: int, error: str) -> None:
    _fail(tmp_path, kind, size, rank, error, every=1)


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
@pytest.mark.parametrize(("size", "rank"), RANKS)
def test_every_error_in_the_background(tmp_path: Path, size: int, rank: int, error: str) -> None:
    _fail(tmp_path, "trainer", size, rank, error, every=1, mode="async")


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_every_error_where_training_goes_on_without_a_save(tmp_path: Path) -> None:
    _fail(tmp_path, "trainer", 1, 0, "ENOSPC", every=1, on_save_error="continue")
