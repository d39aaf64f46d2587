"""The faults that are shipped, tried on a loop of one's own, and on one that does not stand them."""

import errno
import os
import re
import shutil
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import keepstep
from keepstep.checkpoint import save as save_module
from keepstep.errors import FaultError
from keepstep.job.determinism import seed_all
from keepstep.ops.verify import verify
from keepstep.storage import tracing
from keepstep.storage.local import remove_tree
from keepstep.testing import faults
from keepstep.testing.faults.calls import committed_step
from tests.rig.folders import make_checkpoint
from tests.rig.syscalls import require_strace


def own_loop(folder: str) -> None:
    seed_all(0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    config = keepstep.CheckpointingConfig(save_dir=folder, period_steps=2, num_to_keep=1)
    state = keepstep.JobState(model=model, optimizer=optimizer)
    with keepstep.Checkpointer(config, state, run_name="mine", total_steps=4) as checkpointer:
        for step in range(checkpointer.resume() + 1, 5):
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            checkpointer.save_if_due(step)


@pytest.fixture
def traceable(tmp_path: Path) -> None:
    require_strace(tmp_path)
    own_loop(str(tmp_path / "warm"))  # what torch imports late is no system call of a save


def test_a_loop_of_ones_own_stands_kills(traceable: None, tmp_path: Path) -> None:
    report = faults.crash_matrix(own_loop, start_method="fork", every=9, folder=tmp_path / "work")
    print(f"\n{report}")
    assert report.bad == []
    assert report.not_killed == 0
    assert report.points >= 5
    assert {"fsync", "rename", "unlinkat"} <= set(report.calls)


def resume_from_a_wrong_step(folder: str) -> None:
    """A broken job: after a crash it begins at the first step again, and says that it did not."""
    if any(Path(folder).rglob("save-2")):
        shutil.rmtree(Path(folder) / "mine")
    own_loop(folder)


def delete_before_the_commit(folder: str) -> None:
    """A broken saver: it makes room first. Whoever kills it in between finds an empty folder, which looks innocent."""
    commit = save_module._commit

    def broken(request: Any, *rest: Any) -> None:
        for older in request.folder.glob("save-*"):
            doomed = older.rename(request.folder / f".{older.name}.del-1")
            remove_tree(doomed)
        commit(request, *rest)

    save_module._commit = broken
    own_loop(folder)


def test_a_saver_that_deletes_before_it_commits_is_found(traceable: None, tmp_path: Path) -> None:
    report = faults.crash_matrix(
        delete_before_the_commit, start_method="fork", calls=faults.SYNCS, every=2, folder=tmp_path / "work"
    )
    print(f"\n{report}")
    assert set(report.calls) == {"fsync"}
    assert any("began at step 0, and 2 was committed" in problem for problem in report.bad)


def two_ranks(folder: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    try:
        own_loop(folder)
    finally:
        dist.destroy_process_group()


def test_a_kill_of_another_rank_and_the_commits_of_the_main_process(traceable: None, tmp_path: Path) -> None:
    place = tmp_path / "run"
    killed = faults.run_with(two_ranks, [faults.Kill("pwrite64", 2)], place, rank=1, ranks=2, start_method="fork")
    assert killed.codes[1] == -9
    assert killed.codes[0] not in (0, None)
    assert (killed.newest, killed.committed) == (2, 2)
    assert committed_step(Path(f"{place}.trace.rank_0")) == 2
    again = faults.run_with(two_ranks, [], place, ranks=2, start_method="fork")
    assert (again.codes, again.start, again.newest) == ((0, 0), 2, 4)
    assert not list(tmp_path.glob("run.trace.rank_*"))


def test_a_rank_that_is_started_again_meets_no_fault_again(traceable: None, tmp_path: Path) -> None:
    def restarted(folder: str) -> None:
        for _ in range(2):
            child = os.fork()
            if child == 0:
                own_loop(folder)
                os._exit(0)
            _, status = os.waitpid(child, 0)
        assert status == 0

    ended = faults.run_with(restarted, [faults.Kill("rename", 2)], tmp_path / "run", start_method="fork")
    assert (ended.codes, ended.newest, ended.start) == ((0,), 4, 2)


def test_the_example_of_the_docs(traceable: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands, but on forked processes, and with fewer kills and states."""
    (block,) = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs/faults.md").read_text(), re.DOTALL)
    quick = SimpleNamespace(
        crash_matrix=lambda job, **options: faults.crash_matrix(job, **options | {"start_method": "fork", "every": 60}),
        power_cuts=lambda job, **options: faults.power_cuts(job, **options | {"start_method": "fork", "limit": 8}),
        run_with=lambda job, fault, folder: faults.run_with(job, fault, tmp_path / folder.name, start_method="fork"),
        Fail=faults.Fail,
    )
    code = block.replace("from keepstep.testing import faults\n", "")
    exec(compile(code, "docs/faults.md", "exec"), {"__name__": "__main__", "faults": quick})
    told = capsys.readouterr().out
    assert "kills" in told
    assert "states of the disk" in told
    assert "(1,) 2 (0,) 4" in told


def test_a_job_that_loses_work_is_found(traceable: None, tmp_path: Path) -> None:
    report = faults.crash_matrix(resume_from_a_wrong_step, start_method="fork", every=9, folder=tmp_path / "work")
    print(f"\n{report}")
    assert any("was committed" in problem for problem in report.bad)


@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EDQUOT"])
@pytest.mark.parametrize("call", ["pwrite64", "fsync", "write"])
def test_calls_that_fail(traceable: None, tmp_path: Path, call: str, error: str) -> None:
    fault = faults.Fail(call, n=2, error=error, lasting=True)
    ended = faults.run_with(own_loop, [fault], tmp_path / "run", start_method="fork")
    assert ended.codes[0] not in (0, None)
    if call != "write":  # which what it prints goes through, too
        assert os.strerror(getattr(errno, error)) in ended.log
    assert ended.newest in (0, 2)
    again = faults.run_with(own_loop, [], tmp_path / "run", start_method="fork")
    assert (again.codes, again.newest, again.start) == ((0,), 4, ended.newest)


def test_a_slow_disk(traceable: None, tmp_path: Path) -> None:
    started = time.monotonic()
    ended = faults.run_with(own_loop, [faults.Slow("fsync", 0.05)], tmp_path / "run", start_method="fork")
    assert (ended.codes, ended.newest) == ((0,), 4)
    assert time.monotonic() - started > 10 * 0.05


def test_a_command_is_reached_too_and_its_own_folder_is_left_alone(traceable: None, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    root = str(Path(__file__).parents[2])
    lines = [f"import sys; sys.path[:0] = [{root!r}, {root + '/src'!r}]"]
    lines += ["from tests.testing.test_faults import own_loop", f"own_loop({str(tmp_path / 'mine')!r})"]
    script.write_text("\n".join(lines))
    ended = faults.run_with([sys.executable, str(script)], [faults.Kill("rename", 2)], tmp_path / "run")
    assert ended.codes == (-9,)
    assert ended.newest == 2
    assert not (tmp_path / "mine").exists()


def test_what_could_not_be_tried_is_no_success(traceable: None, tmp_path: Path) -> None:
    with pytest.raises(FaultError, match="no rank 5 of the job was traced"):
        faults.crash_matrix(own_loop, rank=5, start_method="fork", folder=tmp_path / "a")
    with pytest.raises(FaultError, match="no rank 5 of the job was traced"):
        faults.run_with(own_loop, [faults.Kill("fsync")], tmp_path / "b", rank=5, start_method="fork")
    with pytest.raises(FaultError, match="none of these calls: pwritev2"):
        faults.crash_matrix(own_loop, calls=["pwritev2"], start_method="fork", folder=tmp_path / "c")


def test_without_strace_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = tracing.TraceSettings(str(tmp_path), 0, ("-e", "trace=write"), str(tmp_path / "log"))
    monkeypatch.setenv(tracing.VARIABLE, settings.to_environment()[tracing.VARIABLE])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FaultError, match="strace is not installed"):
        tracing.trace_this_process(0)
    tracing.trace_this_process(1)  # it is not meant


class TestFiles:
    def test_a_bit_is_flipped_and_found(self, tmp_path: Path) -> None:
        checkpoint = make_checkpoint(tmp_path, 5)
        faults.flip_bit(checkpoint / "__0_0.distcp", 30_000, bit=3)
        (found,) = verify(checkpoint)
        assert "model.second" in found.problems[0]
        faults.flip_bit(checkpoint / "__0_0.distcp", 30_000, bit=3)
        assert next(iter(verify(checkpoint))).condition == "complete"

    def test_a_file_is_cut_swapped_and_hidden(self, tmp_path: Path) -> None:
        first, second = tmp_path / "a", tmp_path / "b"
        first.write_bytes(b"12345")
        second.write_bytes(b"x")
        faults.cut(first, 3)
        assert first.read_bytes() == b"123"
        faults.cut(first, -1)
        assert first.read_bytes() == b"12"
        faults.swap(first, second)
        assert (first.read_bytes(), second.read_bytes()) == (b"x", b"12")
        with faults.hidden(first):
            assert not first.exists()
        assert first.read_bytes() == b"x"
        faults.flip_bit(first, -1)
        assert first.read_bytes() == b"y"

    def test_a_small_disk(self, tmp_path: Path) -> None:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4096", "tmpfs", str(tmp_path)], check=False).returncode:
            with pytest.raises(FaultError, match="no small disk"), faults.small_disk(tmp_path / "disk", 1 << 16):
                pass
            return
        subprocess.run(["umount", str(tmp_path)], check=True)
        with faults.small_disk(tmp_path / "disk", 1 << 16) as disk, pytest.raises(OSError, match="No space left"):
            (disk / "file").write_bytes(bytes(1 << 17))
        assert not os.path.ismount(tmp_path / "disk")
