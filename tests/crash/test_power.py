"""Power cuts: every state of the disk that one may leave during two saves and a deletion, and a resume from each."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint import save as save_module
from keepstep.dist import background
from keepstep.storage import local
from keepstep.storage import writer as writer_module
from keepstep.testing.faults import STRACE_OPTIONS, Recording, crash_states, materialize, read_recording
from keepstep.testing.faults.crash_states import Name, Remove
from tests.rig import forks, tiny
from tests.rig.syscalls import Tracer, require_strace


def _job(folder: Path) -> dict[str, Any]:
    return tiny.train(tiny.Tiny(str(folder), total=4, period=2, keep=1))


def _job_in_background(folder: Path) -> dict[str, Any]:
    background.PATIENCE_SECONDS = 1.5
    return tiny.train(tiny.Tiny(str(folder), total=4, period=2, keep=1, mode="async"))


def _record(job: Callable[[Path], Any], folder: Path, size: int, *, threads: bool = False) -> Recording:
    """Run the job with a tracer on each rank."""
    folder.mkdir()
    ranks = forks.start(lambda: job(folder), size)
    tracers = [
        Tracer(rank, folder.with_name(f"trace-{number}"), threads=threads, options=STRACE_OPTIONS)
        for number, rank in enumerate(ranks)
    ]
    for rank in ranks:
        rank.go()
    assert [end.status for end in forks.wait_all(ranks)] == [0] * size
    for tracer in tracers:
        tracer.wait()
    return Recording.of(read_recording([tracer.log for tracer in tracers], folder))


def _resume_from_each(
    tmp: Path,
    recording: Recording,
    size: int,
    limit: int,
    begin: int = 0,
    committed: int | None = None,
    *,
    first: bool = False,
) -> tuple[int, list[str]]:
    """Resume from states of the disk. How many there were, and what went wrong.

    Args:
        begin: only cuts after so many operations.
        committed: the step that counts as committed; by default what the recording says of the moment.
        first: go no further than to the first state that is bad.
    """
    work, reference = tmp / "work", tmp / "reference"
    shutil.rmtree(reference, ignore_errors=True)
    expected = [_without_start(one) for one in forks.values(lambda: _job(reference), size)]
    tried, bad = 0, []
    for state in crash_states(recording.operations, limit, begin=begin):
        tried += 1
        newest = recording.committed(state.done) if committed is None else committed
        materialize(state, work)
        what = f"after {state.done} of {len(recording.operations)} operations: {sorted(state.content)}"
        for end, right in zip(forks.run(lambda: _job(work), size), expected, strict=True):
            if end.error is not None or end.status:
                bad.append(f"{what}: the resume failed: {end.error!r}")
            elif end.value["start"] < newest:
                bad.append(f"{what}: resumed from {end.value['start']}, and step {newest} was committed")
            elif _without_start(end.value) != right:
                bad.append(f"{what}: another result")
        if bad and first:
            break
    return tried, bad


def _without_start(value: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in value.items() if key != "start"}


def _check(tmp: Path, size: int, limit: int, job: Callable[[Path], Any] = _job) -> None:
    recording = _record(job, tmp / "recorded", size, threads=job is not _job)
    assert [step for _, step in recording.commits] == [2, 4]
    _deletes_only_what_is_not_needed(recording)
    tried, bad = _resume_from_each(tmp, recording, size, limit)
    operations = len(recording.operations)
    print(f"\n{job.__name__}, {size} ranks: {operations} operations, {tried} states resumed from, {len(bad)} bad")
    assert bad == []
    assert tried >= limit // 4


def _deletes_only_what_is_not_needed(recording: Recording) -> None:
    """What takes save-2 away begins after save-4 is durable, whatever states were chosen."""
    taken = [
        number
        for number, one in enumerate(recording.operations, 1)
        if (isinstance(one, Name) and one.before is not None and one.before[1] == "save-2")
        or (isinstance(one, Remove) and one.name == "save-2")
    ]
    assert taken
    assert recording.committed(taken[0] - 1) == 4


@pytest.fixture(autouse=True)
def _traceable(tmp_path: Path) -> None:
    require_strace(tmp_path)


@pytest.mark.parametrize("size", [1, 2])
def test_some_states_after_a_power_cut(tmp_path: Path, size: int) -> None:
    _check(tmp_path, size, 60 // size)


def test_some_states_after_a_power_cut_while_saves_go_on_in_the_background(tmp_path: Path) -> None:
    _check(tmp_path, 1, 30, _job_in_background)


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("job", [_job, _job_in_background])
@pytest.mark.parametrize("size", [1, 2])
def test_many_states_after_a_power_cut(tmp_path: Path, size: int, job: Callable[[Path], Any]) -> None:
    _check(tmp_path, size, 2000, job)


def _without_sync_of_the_parent(folder: Path) -> dict[str, Any]:
    """The rename that commits is not made durable before the older checkpoint is deleted."""
    sync = local.sync_folder
    local.sync_folder = lambda path: None if (path / ".keepstep").exists() else sync(path)
    return _job(folder)


def _without_sync_of_the_shard(folder: Path) -> dict[str, Any]:
    writer_module._Target.sync = lambda self: None
    return _job(folder)


def _without_sync_of_the_checkpoint(folder: Path) -> dict[str, Any]:
    sync = save_module.sync_folder
    save_module.sync_folder = lambda path: None if ".tmp-" in path.name else sync(path)
    return _job(folder)


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.crash)])
@pytest.mark.parametrize(
    "job", [_without_sync_of_the_parent, _without_sync_of_the_shard, _without_sync_of_the_checkpoint]
)
def test_a_sync_that_is_left_out_is_found(tmp_path: Path, job: Callable[[Path], Any], size: int) -> None:
    recording = _record(job, tmp_path / "recorded", size)
    begin = _goes_on_to_delete(recording)
    tried, bad = _resume_from_each(tmp_path, recording, size, 50, begin=begin, committed=4, first=True)
    print(f"\n{job.__name__}, {size} ranks: {bad} after {tried} states")
    assert any("step 4 was committed" in one or "the resume failed" in one for one in bad)


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.crash)])
def test_of_the_untouched_job_nothing_is_found_in_the_same_states(tmp_path: Path, size: int) -> None:
    """The judge itself."""
    recording = _record(_job, tmp_path / "recorded", size)
    begin = _goes_on_to_delete(recording)
    tried, bad = _resume_from_each(tmp_path, recording, size, 14, begin=begin, committed=4)
    assert tried
    assert bad == []


def _goes_on_to_delete(recording: Recording) -> int:
    """To the job step 4 is committed: from the moment on when it goes on to delete the older one, it must be there."""
    renames = [n for n, one in enumerate(recording.operations, 1) if isinstance(one, Name) and one.name == "save-4"]
    gone = [n for n, one in enumerate(recording.operations, 1) if isinstance(one, Name) and ".del-" in one.name]
    assert renames[0] < gone[0]
    return gone[0]
