"""Killed after steps, inside writes and at system calls: each input is in the outputs once, and every line is valid."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keepstep.job import attempt as attempt_module
from keepstep.job import inference as inference_module
from keepstep.job.inference import InferenceJob
from keepstep.storage import local
from keepstep.storage.survey import survey
from tests.rig import forks, jobs, outputs
from tests.rig.matrix import Subject, run_matrix
from tests.rig.syscalls import require_strace

STEPS = 26
# 26 steps and a save every 5: so many times a rank writes rows.
WRITES = 6


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _after(step: int) -> Callable[[], None]:
    """Make this process die after a step."""

    def prepare() -> None:
        original = inference_module.leave_if_asked

        def leave(checkpointer: Any, at: int, total: int) -> None:
            original(checkpointer, at, total)
            if at == step:
                _die()

        inference_module.leave_if_asked = leave

    return prepare


def _within(write: int, rank: int) -> Callable[[], None]:
    """Make a rank die when half of its n-th file of rows is written."""

    def prepare() -> None:
        if forks.world.rank != rank:
            return
        original, count = local.DurableFile._write_out, 0

        def write_out(self: local.DurableFile, view: memoryview) -> None:
            nonlocal count
            if self.path.name.startswith(".part-") and view:
                count += 1
                if count == write:
                    original(self, view[: len(view) // 2])
                    _die()
            original(self, view)

        local.DurableFile._write_out = write_out  # type: ignore[method-assign]

    return prepare


def _killed_and_finished(folder: Path, prepare: Callable[[], None], ranks: int, **settings: Any) -> None:
    def dies() -> None:
        prepare()
        InferenceJob(outputs.config(folder, **settings)).run()

    def goes_on() -> None:
        InferenceJob(outputs.config(folder, **settings)).run()

    assert any(end.killed for end in forks.run(dies, ranks))
    seen = outputs.visible(folder)
    assert len({row["id"] for row in seen}) == len(seen)
    newest = max([0, *(c.found.step for c in survey(folder / "saves").complete)])
    assert len(seen) <= min(4 * newest, outputs.LENGTH), "a row was seen that no checkpoint has committed"
    forks.values(goes_on, ranks)
    outputs.check(folder)
    before = jobs.tree_digest(folder)
    forks.values(goes_on, ranks)
    assert jobs.tree_digest(folder) == before


_ALL = [
    *((ranks, _after, (step,)) for ranks in (1, 4) for step in range(1, STEPS + 1)),
    *((1, _within, (write, 0)) for write in range(1, WRITES + 1)),
    *((4, _within, (write, rank)) for write in range(1, WRITES + 1) for rank in range(3)),
]
_SOME = [(1, _after, (5,)), (1, _after, (STEPS,)), (4, _within, (2, 1))]


def _name(case: tuple[int, Any, tuple[int, ...]]) -> str:
    return f"{case[0]}{case[1].__name__}_{'_'.join(map(str, case[2]))}"


@pytest.mark.parametrize("case", _SOME, ids=_name)
def test_some_kills(tmp_path: Path, case: tuple[int, Any, tuple[int, ...]]) -> None:
    ranks, how, where = case
    _killed_and_finished(tmp_path, how(*where), ranks)


@pytest.mark.crash
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_every_kill(tmp_path: Path, mode: str) -> None:
    for case in _ALL:
        ranks, how, where = case
        print(_name(case))
        _killed_and_finished(tmp_path / _name(case), how(*where), ranks, checkpointing={"mode": mode})


def _job(folder: Path) -> dict[str, Any]:
    """Three saves."""
    # Ranks that meet again in a store of files wait for ever for one that was killed while it wrote to it.
    attempt_module.current_world = lambda timeout: forks.world
    start = max([0, *(c.found.step for c in survey(folder / "saves").complete)])
    InferenceJob(outputs.config(folder, checkpointing={"period_steps": 10})).run()
    outputs.check(folder)
    return {"start": start, "rows": sorted(outputs.visible(folder), key=lambda row: row["id"])}


def _newest(folder: Path) -> int:
    return max([0, *(c.found.step for c in survey(folder / "saves").complete)])


def _matrix(tmp: Path, size: int, rank: int, every: int) -> None:
    require_strace(tmp)
    forks.values(lambda: _job(tmp / "warm"), 1)
    report = run_matrix(Subject(_job, _newest, skips_reads=True), tmp, size, rank, every)
    print(f"\nrank {rank} of {size}: {report}")
    assert report.bad == []
    assert report.points


@pytest.mark.parametrize(("size", "rank", "every"), [(1, 0, 43), (2, 1, 29)])
def test_some_kills_at_system_calls(tmp_path: Path, size: int, rank: int, every: int) -> None:
    _matrix(tmp_path, size, rank, every)


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("size", "rank"), [(1, 0), (2, 0), (2, 1)])
def test_every_kill_at_a_system_call(tmp_path: Path, size: int, rank: int) -> None:
    _matrix(tmp_path, size, rank, 1)
