"""The process beside a job, from the job's side: whatever happens to it, the job goes on, and nothing stays running."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint.mirrors.beside import Beside, Work
from keepstep.config.mirror import MirrorConfig
from keepstep.plan import layout
from keepstep.plan.mirror import Copy
from keepstep.storage.stored import survey_store
from keepstep.storage.stores.folder import FolderStore
from tests.rig import forks
from tests.rig.folders import make_checkpoint


@pytest.fixture
def work(tmp_path: Path) -> Work:
    (tmp_path / "run").mkdir()
    mirror = MirrorConfig(address=f"file://{tmp_path / 'mirror'}")
    return Work(mirror, tmp_path / "run", "exp", 1, "a job", layout.NATIVE)


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


_ends: list[float] = []


def left(seconds: float) -> float:
    """Counts down from the first time that it is asked in a test."""
    if not _ends:
        _ends.append(time.monotonic() + seconds)
    return _ends[0] - time.monotonic()


@pytest.fixture(autouse=True)
def _begin() -> None:
    _ends.clear()


def stored(work: Work) -> list[int]:
    folder = Path(work.mirror.address.removeprefix("file://"))
    return [one.found.step for one in survey_store(FolderStore(folder), work.prefix).complete]


def lines(work: Work) -> list[dict[str, Any]]:
    file = work.folder / "saves.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_it_uploads_what_it_is_told_of_and_ends(work: Work) -> None:
    beside = Beside(work)
    make_checkpoint(work.folder, 5)
    beside.committed(5, forced=False)
    assert beside._process is not None
    pid = beside._process.pid

    assert beside.finish(lambda: left(60))
    assert stored(work) == [5]
    assert beside.mirrored == {Copy(5, 1)}
    assert beside.failures == 0
    assert gone(pid)
    assert [(line["outcome"], line["step"]) for line in lines(work)] == [("mirrored", 5)]


def test_one_that_dies_at_once_stops_nothing(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    beside = Beside(work, command=[sys.executable, "-c", "import sys; sys.exit('no such luck')"])
    until(lambda: beside.failures == 1)
    for step in range(1, 10):
        beside.committed(step, forced=False)
        until(lambda: beside._process is None)

    assert not beside.finish(lambda: left(5))
    assert beside.failures == 5
    assert "no such luck" in caplog.text
    assert all(line["outcome"] == "not mirrored" for line in lines(work))


def test_one_that_cannot_be_started_stops_nothing(work: Work) -> None:
    beside = Beside(work, command=["/nonexistent/python"])
    beside.committed(5, forced=True)

    assert not beside.finish(lambda: left(5))
    assert beside.failures == 5


def test_one_that_hangs_is_not_waited_for_for_ever(work: Work) -> None:
    beside = Beside(work, command=[sys.executable, "-c", "import time; time.sleep(600)"])
    assert beside._process is not None
    pid = beside._process.pid
    for step in range(3):
        beside.committed(step, forced=False)
    started = time.monotonic()

    assert not beside.finish(lambda: left(1))
    assert time.monotonic() - started < 10
    assert gone(pid)


def test_one_that_reads_nothing_does_not_block_the_job(work: Work) -> None:
    beside = Beside(work, command=[sys.executable, "-c", "import time; time.sleep(600)"])
    started = time.monotonic()
    for step in range(5000):  # more than a pipe holds
        beside.committed(step, forced=False)

    assert time.monotonic() - started < 10
    beside.close()


def test_one_that_was_killed_comes_back_with_the_next_checkpoint(work: Work) -> None:
    beside = Beside(work)
    assert beside._process is not None
    beside._process.send_signal(signal.SIGKILL)
    until(lambda: beside._process is None)
    make_checkpoint(work.folder, 5)
    beside.committed(5, forced=False)

    assert beside.finish(lambda: left(60))
    assert stored(work) == [5]
    assert beside.failures == 1


def test_a_job_that_was_killed_leaves_none_running(work: Work, tmp_path: Path) -> None:
    def job() -> None:
        beside = Beside(work)
        assert beside._process is not None
        (tmp_path / "pid").write_text(str(beside._process.pid))
        time.sleep(60)

    (rank,) = forks.start(job)
    rank.go()
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    rank.kill()
    rank.wait()

    pid = int((tmp_path / "pid").read_text())
    until(lambda: gone(pid))


def test_the_other_job_on_the_mirror_is_named_once_and_nothing_more_goes_there(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    first = Beside(work)
    make_checkpoint(work.folder, 5)
    first.committed(5, forced=False)
    until(lambda: stored(work) == [5])
    second = Beside(Work(work.mirror, work.folder, "exp", 2, "another job", layout.NATIVE))
    until(lambda: (Path(work.mirror.address[7:]) / "exp/.keepstep/attempts/2/holder.json").exists())
    make_checkpoint(work.folder, 10, attempt=1)
    second.close()
    first.committed(10, forced=False)
    until(lambda: first.is_lost)

    assert stored(work) == [5]
    assert "another job" in caplog.text
    assert not first.finish(lambda: left(5))


def test_a_system_without_threads_stops_nothing(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", refuse)
        beside = Beside(work)
    make_checkpoint(work.folder, 5)
    beside.committed(5, forced=False)

    assert beside.finish(lambda: left(60))
    assert stored(work) == [5]
    assert beside.failures == 1
