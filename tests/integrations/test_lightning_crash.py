"""A kill at every system call of a save and of a removal, and every state that a power cut may leave of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="Lightning is not installed: pip install keepstep[lightning]")

from keepstep.integrations.lightning import VerifiedCheckpointIO, newest_verified
from keepstep.integrations.lightning.facts import facts_of
from keepstep.integrations.lightning.folders import _begin, _commit
from keepstep.integrations.lightning.verdict import Judged, judge
from keepstep.testing.faults import STRACE_OPTIONS, Kill, crash_states, materialize, read_recording
from tests.rig import forks
from tests.rig.syscalls import Tracer, require_strace

CALLS = ("openat", "write", "fsync", "rename", "unlink", "mkdir", "rmdir", "renameat2")


def checkpoint(step: int) -> dict[str, Any]:
    return {"global_step": step, "state_dict": {"w": torch.full((100,), float(step))}, "optimizer_states": []}


def save(path: Path, step: int) -> None:
    VerifiedCheckpointIO().save_checkpoint(checkpoint(step), path)


def save_folder(path: Path, step: int) -> None:
    """What a strategy that writes folders does, on one rank."""
    pending = _begin(path)
    for name in ("__0_0.distcp", ".metadata", "meta.pt"):
        (pending.scratch / name).write_text(f"{name} of {step}")
    _commit(pending, facts_of(checkpoint(step), 1), None)


def before(folder: Path, write: Callable[[Path, int], None]) -> None:
    folder.mkdir()
    write(folder / "ck.ckpt", 1)
    write(folder / "last.ckpt", 1)


def saves(folder: Path, write: Callable[[Path, int], None]) -> None:
    """A new name, one that is overwritten, one that goes: as ModelCheckpoint does it."""
    write(folder / "ck-v1.ckpt", 2)
    VerifiedCheckpointIO().remove_checkpoint(folder / "ck.ckpt")
    write(folder / "last.ckpt", 2)


def problem_in(folder: Path, write: Callable[[Path, int], None], least: int = 1) -> str:
    """What is wrong with a folder that a crash has left; empty when nothing is."""
    present = [path for path in folder.glob("*.ckpt") if not path.name.startswith(".")]
    for path in present:
        if judge(path).judged is not Judged.GOOD:
            return f"{path.name} is {judge(path)}"
    newest = newest_verified(folder)
    record = None if newest is None else judge(newest).record
    if record is None or record.order[0] < least:
        return f"{newest} was chosen"
    if len(present) > 1 and any(judge(path).record.order[0] > record.order[0] for path in present):  # type: ignore[union-attr]
        return "an older one was chosen"
    write(folder / "next.ckpt", 3)
    left = sorted(path.name for path in folder.iterdir() if ".tmp-" in path.name or ".del-" in path.name)
    names = {
        path.name.rsplit(".", 3 if ".run." in path.name else 2)[0] for path in (folder / ".keepstep/files").iterdir()
    }
    if left or names != {path.name for path in folder.glob("*.ckpt")}:
        return f"{left} and records of {names} are left"
    return "" if newest_verified(folder) == folder / "next.ckpt" else "the next save is not the newest"


@pytest.mark.parametrize("write", [save, save_folder])
def test_killed_at_some_calls(tmp_path: Path, write: Callable[[Path, int], None]) -> None:
    killed_at_each(tmp_path, write, every=5 if write is save else 11)


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("write", [save, save_folder])
def test_killed_at_every_call(tmp_path: Path, write: Callable[[Path, int], None]) -> None:
    print(f"{killed_at_each(tmp_path, write, every=1)} kills of a save of Lightning's ({write.__name__}), 0 bad")


def killed_at_each(tmp_path: Path, write: Callable[[Path, int], None], every: int) -> int:
    """Kill the saves at each call; returns how often. Fails when a folder was left that is not in order."""
    require_strace(tmp_path)
    before(tmp_path / "warm", write)
    saves(tmp_path / "warm", write)
    before(tmp_path / "counted", write)
    (rank,) = forks.start(lambda: saves(tmp_path / "counted", write))
    tracer = Tracer(rank, tmp_path / "trace")
    rank.go()
    assert rank.wait().status == 0
    counts = tracer.counts()
    points = [Kill(call, number) for call in CALLS for number in range(1, counts[call] + 1)][::every]
    bad, killed = [], 0
    for number, kill in enumerate(points):
        folder = tmp_path / str(number)
        before(folder, write)
        (rank,) = forks.start(lambda folder=folder: saves(folder, write))  # type: ignore[misc]
        tracer = Tracer(rank, tmp_path / "trace", kill)
        rank.go()
        killed += rank.wait().killed
        tracer.wait()
        if found := problem_in(folder, write):
            bad.append(f"{kill}: {found}")
    assert not bad, "\n".join(bad)
    assert killed == len(points) >= 8
    return killed


@pytest.mark.parametrize("write", [save, save_folder])
def test_the_power_is_cut(tmp_path: Path, write: Callable[[Path, int], None]) -> None:
    the_power_is_cut(tmp_path, write, limit=40)


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("write", [save, save_folder])
def test_the_power_is_cut_everywhere(tmp_path: Path, write: Callable[[Path, int], None]) -> None:
    states = the_power_is_cut(tmp_path, write, limit=2000)
    print(f"{states} states of the disk after a power cut ({write.__name__}), 0 bad")


def the_power_is_cut(tmp_path: Path, write: Callable[[Path, int], None], limit: int) -> int:
    """Look at states of the disk after a power cut; returns how many. Fails when one is not in order."""
    require_strace(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir()
    (rank,) = forks.start(lambda: _both(folder, write))
    tracer = Tracer(rank, tmp_path / "trace", options=STRACE_OPTIONS)
    rank.go()
    assert rank.wait().status == 0
    tracer.wait()
    operations = read_recording([tmp_path / "trace"], folder)
    begin = next(n for n, operation in enumerate(operations) if "ck-v1" in str(operation))
    bad, states = [], 0
    for state in crash_states(operations, limit, begin=begin):
        states += 1
        materialize(state, tmp_path / "work")
        if found := problem_in(tmp_path / "work" / "in", write):
            bad.append(f"after {state.done} of {len(operations)}: {found}: {sorted(state.content)}")
    assert not bad, "\n".join(bad)
    assert states > 12
    return states


def _both(folder: Path, write: Callable[[Path, int], None]) -> None:
    before(folder / "in", write)
    saves(folder / "in", write)
