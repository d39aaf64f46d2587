"""Power cuts during an adoption: in no state of the disk a manifest stands over bytes that are not there."""

import shutil
from pathlib import Path

import pytest

from keepstep.ops.adopt import apply_adopt, plan_adopt
from keepstep.plan.layout import TRAINER
from keepstep.plan.resume import Condition
from keepstep.storage import folder_files
from keepstep.storage.survey import survey
from keepstep.storage.verify import verify_files
from keepstep.testing.faults import STRACE_OPTIONS, Recording, crash_states, materialize, read_recording
from tests.rig import forks
from tests.rig.syscalls import Tracer, require_strace
from tests.rig.trainer_folders import make_trainer_checkpoint


@pytest.fixture(autouse=True)
def _traceable(tmp_path: Path) -> None:
    require_strace(tmp_path)


def record(tmp: Path, *, synced: bool = True) -> Recording:
    """A Trainer writes two checkpoints, syncing none of their files, and both are adopted."""
    for step in (5, 10):
        made = make_trainer_checkpoint(tmp / "made", step)
        (made / "inner").mkdir()
        (made / "inner" / "file").write_bytes(b"12345")
    run = tmp / "run"
    run.mkdir()

    def job() -> int:
        if not synced:
            folder_files._sync_file = lambda path: None
        shutil.copytree(tmp / "made", run, dirs_exist_ok=True, copy_function=_copy)
        return len(apply_adopt(plan_adopt(run)).steps)

    (rank,) = forks.start(job, 1)
    tracer = Tracer(rank, tmp / "trace", threads=True, options=STRACE_OPTIONS)
    rank.go()
    (end,) = forks.wait_all([rank])
    assert end.value == 2
    tracer.wait()
    return Recording.of(read_recording([tracer.log], run))


def _copy(source: str, target: str) -> None:
    Path(target).write_bytes(Path(source).read_bytes())  # by calls that a recording knows


def judged(tmp: Path, recording: Recording, limit: int) -> tuple[int, list[str], list[int]]:
    """States that were looked at, what is wrong in them, and how many checkpoints were whole in those at the end."""
    tried, bad, last = 0, [], []
    for state in crash_states(recording.operations, limit):
        tried += 1
        materialize(state, tmp / "work")
        found = survey(tmp / "work", TRAINER).checkpoints
        whole = [one for one in found if one.found.condition is Condition.COMPLETE and one.manifest is not None]
        damage = [d for one in whole for d in verify_files(one.path, one.manifest, sorted(one.manifest.files))]
        if damage or any(one.found.condition is Condition.DAMAGED for one in found):
            bad.append(f"after {state.done} of {len(recording.operations)}: {damage} {[one.found for one in found]}")
        if state.done == len(recording.operations):
            last.append(len(whole))
    return tried, bad, last


def test_every_state_is_whole_or_not_committed(tmp_path: Path) -> None:
    recording = record(tmp_path)
    tried, bad, last = judged(tmp_path, recording, 8 * len(recording.operations))
    print(f"\n{len(recording.operations)} operations, {tried} states, {len(bad)} bad")
    assert bad == []
    assert last
    assert set(last) == {2}


def test_it_would_be_found_if_files_were_not_synced(tmp_path: Path) -> None:
    recording = record(tmp_path, synced=False)
    assert judged(tmp_path, recording, 2 * len(recording.operations))[1]
