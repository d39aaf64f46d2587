"""Power cuts: every state of the disk that one may leave during two saves and a deletion, and a resume from each."""

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint import save as save_module
from keepstep.plan import layout
from keepstep.storage import local
from keepstep.storage import writer as writer_module
from keepstep.testing.faults.crash_states import CrashState, Name, Operation, Sync, crash_states
from keepstep.testing.faults.recording import CALLS, STRACE_OPTIONS, read_recording
from tests.rig import forks, tiny
from tests.rig.syscalls import require_strace


def _job(folder: Path) -> dict[str, Any]:
    return tiny.train(tiny.Tiny(str(folder), total=4, period=2, keep=1))


def _record(job: Callable[[Path], Any], folder: Path, size: int) -> list[Operation]:
    """Run the job with a tracer on each rank."""
    folder.mkdir()
    ranks = forks.start(lambda: job(folder), size)
    tracers, logs = [], []
    for number, rank in enumerate(ranks):
        logs.append(folder.with_suffix(f".strace-{number}"))
        command = [
            "strace",
            *STRACE_OPTIONS,
            "-o",
            str(logs[-1]),
            "-e",
            f"trace={','.join(CALLS)}",
            "-p",
            str(rank.pid),
        ]
        tracers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + 20
        while "TracerPid:\t0" in Path(f"/proc/{rank.pid}/status").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.002)
    for rank in ranks:
        rank.go()
    assert [end.status for end in forks.wait_all(ranks)] == [0] * size
    for tracer in tracers:
        tracer.wait(60)
    return read_recording(logs, folder)


def _committed(operations: Sequence[Operation]) -> list[tuple[int, int]]:
    """(operations made, step) for each commit: its name was given, and the folder that holds it was synced."""
    commits, waiting = [], []
    for number, operation in enumerate(operations, 1):
        if isinstance(operation, Name) and (step := layout.step_of(operation.name)) is not None:
            waiting.append((operation.folder, step))
        if isinstance(operation, Sync):
            commits += [(number, step) for folder, step in waiting if folder == operation.node]
            waiting = [one for one in waiting if one[0] != operation.node]
    return commits


def _build(state: CrashState, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path, data in sorted(state.content.items()):
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)


def _resume_from_each(tmp: Path, operations: Sequence[Operation], size: int, limit: int) -> tuple[int, list[str]]:
    expected = [_without_start(one) for one in forks.values(lambda: _job(tmp / "reference"), size)]
    commits = _committed(operations)
    assert [step for _, step in commits] == [2, 4]
    tried, bad = 0, []
    work = tmp / "work"
    for state in crash_states(operations, limit):
        tried += 1
        newest = max([0, *(step for number, step in commits if number <= state.done)])
        _build(state, work)
        what = f"after {state.done} of {len(operations)} operations: {sorted(state.content)}"
        for end in forks.run(lambda: _job(work), size):
            if end.error is not None or end.status:
                bad.append(f"{what}: the resume failed: {end.error!r}")
            elif end.value["start"] < newest:
                bad.append(f"{what}: resumed from {end.value['start']}, and step {newest} was committed")
            elif _without_start(end.value) not in expected:
                bad.append(f"{what}: another result")
    return tried, bad


def _without_start(value: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in value.items() if key != "start"}


def _check(tmp: Path, size: int, limit: int) -> None:
    operations = _record(_job, tmp / "recorded", size)
    tried, bad = _resume_from_each(tmp, operations, size, limit)
    print(f"\n{size} ranks: {len(operations)} operations, {tried} states of the disk resumed from, {len(bad)} bad")
    assert bad == []
    assert tried >= limit // 4


@pytest.fixture(autouse=True)
def _traceable(tmp_path: Path) -> None:
    require_strace(tmp_path)


@pytest.mark.parametrize("size", [1, 2])
def test_some_states_after_a_power_cut(tmp_path: Path, size: int) -> None:
    _check(tmp_path, size, 50 // size)


@pytest.mark.crash
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("size", [1, 2])
def test_many_states_after_a_power_cut(tmp_path: Path, size: int) -> None:
    _check(tmp_path, size, 2000)


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


@pytest.mark.parametrize(
    "job", [_without_sync_of_the_parent, _without_sync_of_the_shard, _without_sync_of_the_checkpoint]
)
def test_a_sync_that_is_left_out_is_found(tmp_path: Path, job: Callable[[Path], Any]) -> None:
    operations = _record(job, tmp_path / "recorded", 1)
    renames = [number for number, one in enumerate(operations, 1) if isinstance(one, Name) and one.name == "save-4"]
    assert renames
    # Judged as if the commit had returned: nothing after the rename but deletions and book-keeping.
    bad = []
    work = tmp_path / "work"
    for state in crash_states(operations, 400):
        if state.done < renames[0]:
            continue
        _build(state, work)
        (end,) = forks.run(lambda: _job(work), 1)
        if end.error is not None or end.value["start"] < 2:
            bad.append(f"{state.done}: {end.error or end.value['start']}")
    print(f"\n{job.__name__}: {len(bad)} bad states, such as {bad[:1]}")
    assert bad
