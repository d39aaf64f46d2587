"""Saves that go on beside the training: one step in the file, no outcome lost, nothing left over."""

import contextlib
import gc
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import keepstep
from keepstep.checkpoint import save as save_module
from keepstep.checkpoint import snapshot as snapshot_module
from keepstep.dcp.metadata import read_metadata, stored_keys
from keepstep.dcp.reader import read
from keepstep.dist import background
from keepstep.errors import SaveError
from keepstep.storage import writer as writer_module
from keepstep.storage.survey import survey
from tests.rig import forks, tiny
from tests.rig.folders import names


class Held:
    """Something with state of all kinds, all of it the number of the step."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.set(0)

    def set(self, step: int) -> None:
        self.state.setdefault("nested", {"list": [0, [0]], "tensor": torch.zeros(3)})
        self.state["nested"]["list"][0] = step
        self.state["nested"]["list"][1][0] = step
        self.state["nested"]["tensor"].fill_(step)
        self.state["step"] = step

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class Job:
    """Parameters, moments, a buffer, plain values: all filled with the step number in place."""

    def __init__(self, size: int = 70_000) -> None:
        self.model = nn.ModuleDict({"small": nn.Linear(2, 2), "large": nn.Linear(size, 1), "norm": nn.BatchNorm1d(2)})
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        sum(parameter.sum() for parameter in self.model.parameters()).backward()
        self.optimizer.step()
        self.parts = {name: Held() for name in ("task", "metrics", "data")}

    def set(self, step: int) -> None:
        with torch.no_grad():
            for tensor in (*self.model.parameters(), *self.model.buffers()):
                tensor.fill_(step)
            for slots in self.optimizer.state.values():
                for value in slots.values():
                    value.fill_(step)
        for part in self.parts.values():
            part.set(step)

    def state(self) -> keepstep.JobState:
        return keepstep.JobState(model=self.model, optimizer=self.optimizer, **self.parts)


def config(tmp_path: Path, **settings: Any) -> keepstep.CheckpointingConfig:
    return keepstep.CheckpointingConfig(save_dir=str(tmp_path), **{"period_steps": 5, "mode": "async", **settings})


def checkpointer(tmp_path: Path, job: Job | None = None, **settings: Any) -> keepstep.Checkpointer:
    state = (job or Job()).state()
    return keepstep.Checkpointer(config(tmp_path, **settings), state, total_steps=100, handle_signals=False)


def steps(folder: Path) -> list[int]:
    return [c.found.step for c in survey(folder).complete]


@contextmanager
def held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No byte of a shard reaches the disk before the event is set."""
    gate = threading.Event()
    real = writer_module._Target.write

    def write(self: Any, piece: memoryview, offset: int) -> None:
        assert gate.wait(30)
        real(self, piece, offset)

    with monkeypatch.context() as patch:
        patch.setattr(writer_module._Target, "write", write)
        try:
            yield gate
        finally:
            gate.set()


def values_in(folder: Path, step: int) -> set[float]:
    """All numbers that a checkpoint holds of the job's own state."""
    found: set[float] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for part in value.values():
                walk(part)
        elif isinstance(value, list | tuple):
            for part in value:
                walk(part)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.add(float(value))

    checkpoint = folder / f"save-{step}"
    keys = stored_keys(read_metadata(checkpoint))
    tensors = {key: torch.empty(s.shape, dtype=s.dtype) for key, s in keys.items() if s.is_tensor}
    trees = read(checkpoint, tensors, [key for key, s in keys.items() if not s.is_tensor])
    state = {key: tensor.unique().tolist() for key, tensor in tensors.items()} | trees
    prefixes = ("model.", "optimizer.state.", "task.", "metrics.", "data.", "step")
    walk({key: value for key, value in state.items() if key.startswith(prefixes) and "__names__" not in key})
    return found


def test_the_file_holds_one_step_while_the_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    with checkpointer(tmp_path, job) as saver:
        saver.resume()
        with held_up(monkeypatch) as gate:
            for step in range(1, 10):
                job.set(step)
                assert saver.save_if_due(step) == (step == 5)
            assert not saver.is_idle
            assert steps(tmp_path) == []
            gate.set()
    assert steps(tmp_path) == [5]
    assert values_in(tmp_path, 5) == {5.0}


@pytest.mark.parametrize("first", ["due", "by hand"])
def test_a_save_before_the_warm_up_is_not_overwritten_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """A run that goes on right before a save: the first step that is not due comes while that is under way."""
    job = Job()
    with checkpointer(tmp_path, job) as saver:
        saver.resume()
        with held_up(monkeypatch) as gate:
            job.set(5)
            assert saver.save_if_due(5) if first == "due" else saver.save(5)
            job.set(6)
            assert not saver.save_if_due(6)
            job.set(7)
            gate.set()
    assert values_in(tmp_path, 5) == {5.0}


def test_saves_one_after_the_other_hold_what_was_there_at_each(tmp_path: Path) -> None:
    job = Job()
    with checkpointer(tmp_path, job, period_steps=1) as saver:
        for step in range(1, 31):
            job.set(step)
            saver.save_if_due(step)
            job.set(-step)
    assert steps(tmp_path) == list(range(1, 31))
    assert all(values_in(tmp_path, step) == {float(step)} for step in (1, 2, 15, 30))


def test_what_is_under_way_is_no_checkpoint_and_the_older_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with checkpointer(tmp_path, num_to_keep=1) as saver:
        saver.save(5)
        saver.wait()
        with held_up(monkeypatch) as gate:
            saver.save(10)
            assert steps(tmp_path) == [5]
            gate.set()
            saver.wait()
        assert steps(tmp_path) == [10]


def test_a_kill_while_a_save_is_under_way_leaves_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        saver = checkpointer(tmp_path, num_to_keep=1)
        saver.save(5)
        saver.wait()
        with held_up(monkeypatch):
            saver.save(10)
            os.kill(os.getpid(), 9)

    (ended,) = forks.run(work)
    assert ended.killed
    with checkpointer(tmp_path, num_to_keep=1) as saver:
        assert saver.resume() == 5
        saver.save(10)
    assert names(tmp_path) == ["save-10", "saves.jsonl"]


def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer_module._Target, "write", write)


def test_a_failure_is_raised_at_the_next_step_and_the_next_save_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with checkpointer(tmp_path, period_steps=1) as saver:
        with monkeypatch.context() as patch:
            failing(patch)
            saver.save(1)
            saver._saver._pending._thread.join()  # type: ignore[union-attr]
        with pytest.raises(SaveError, match=r"saving step 1 to .*save-1: writing shards failed.*No space left"):
            saver.save_if_due(2)
        assert names(tmp_path) == []
        assert saver.save_if_due(3)
    assert steps(tmp_path) == [3]


@pytest.mark.parametrize("last", ["wait", "close", "save", "resume"])
def test_a_failure_is_raised_by_whatever_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    saver = checkpointer(tmp_path)
    with monkeypatch.context() as patch:
        failing(patch)
        saver.save(5)
        with pytest.raises(SaveError, match="No space left"):
            getattr(saver, last)(*([10] if last == "save" else []))
    saver.close()
    assert steps(tmp_path) == []


def test_an_error_of_the_training_is_the_one_that_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job()

    def train() -> None:
        with checkpointer(tmp_path, job) as saver:
            saver.resume()
            with monkeypatch.context() as patch:
                failing(patch)
                saver.save(5)
                saver._saver._pending._thread.join()  # type: ignore[union-attr]
            raise ZeroDivisionError("in step 7")

    with pytest.raises(ZeroDivisionError, match="in step 7"):
        train()
    assert "besides, the save under way failed" in caplog.text
    assert steps(tmp_path) == []
    job.set(7)
    with checkpointer(tmp_path, job) as saver:  # the next attempt begins clean
        assert saver.resume() == 0
        saver.save(5)
    assert steps(tmp_path) == [5]
    assert values_in(tmp_path, 5) == {5.0, 7.0}  # the step's own number, and the job's


def test_an_error_of_the_training_leaves_the_save_under_way_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(gate: threading.Event) -> None:
        with checkpointer(tmp_path) as saver:
            saver.save(5)
            threading.Timer(0.2, gate.set).start()
            raise ZeroDivisionError("in step 7")

    with held_up(monkeypatch) as gate, pytest.raises(ZeroDivisionError):
        train(gate)
    assert steps(tmp_path) == [5]


def test_a_resume_waits_for_the_save_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    with checkpointer(tmp_path, job) as saver:
        job.set(5)
        with held_up(monkeypatch) as gate:
            saver.save(5)
            job.set(6)
            threading.Timer(0.2, gate.set).start()
            assert saver.resume() == 5
    assert job.parts["task"].state["step"] == 5
    assert job.model["small"].weight.unique().tolist() == [5.0]


def test_a_process_that_ends_without_close_completes_its_save(tmp_path: Path) -> None:
    script = f"""
import torch, keepstep, time
from keepstep.storage import writer
real = writer._Target.write
def slow(self, piece, offset):
    time.sleep(0.5)
    real(self, piece, offset)
writer._Target.write = slow
config = keepstep.CheckpointingConfig(save_dir={str(tmp_path)!r}, period_steps=1, mode="async")
saver = keepstep.Checkpointer(config, keepstep.JobState(model=torch.nn.Linear(500, 500)))
saver.save(1)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert steps(tmp_path) == [1]  # 95 MiB: of several pieces, which several threads would write at another time


def test_an_error_that_nobody_asks_for_is_told_at_the_end(tmp_path: Path) -> None:
    script = f"""
import time, torch, keepstep
from keepstep.storage import writer
def full(self, piece, offset):
    raise OSError(28, "No space left on device")
writer._Target.write = full
config = keepstep.CheckpointingConfig(save_dir={str(tmp_path)!r}, period_steps=1, mode="async")
saver = keepstep.Checkpointer(config, keepstep.JobState(model=torch.nn.Linear(2, 2)))
saver.save(1)
time.sleep(0.5)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert "the save of step 1 failed, and nobody has asked for its outcome" in done.stderr
    assert "No space left on device" in done.stderr


def test_a_save_that_comes_due_meanwhile_is_skipped_if_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with checkpointer(tmp_path, period_steps=1, when_busy="skip") as saver:
        with held_up(monkeypatch) as gate:
            assert saver.save_if_due(1)
            assert not saver.save_if_due(2)
            assert "step 2 is not saved" in caplog.text
            gate.set()
            saver.wait()
        assert saver.save_if_due(3)
        with held_up(monkeypatch) as gate:
            threading.Timer(0.2, gate.set).start()
            assert saver.save_if_due(100)  # the last step is never skipped
    assert steps(tmp_path) == [1, 3, 100]
    assert '"step":2,"attempt":1,"outcome":"skipped"' in (tmp_path / "saves.jsonl").read_text()


def test_it_waits_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with checkpointer(tmp_path, period_steps=1) as saver, held_up(monkeypatch) as gate:
        saver.save_if_due(1)
        threading.Timer(0.2, gate.set).start()
        assert saver.save_if_due(2)
    assert steps(tmp_path) == [1, 2]


def test_where_memory_is_short_saves_are_synchronous_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "keepstep")
    monkeypatch.setattr(snapshot_module, "available_bytes", lambda: 100_000)
    with checkpointer(tmp_path) as saver:
        saver.save(5)
        assert saver.is_idle
        assert steps(tmp_path) == [5]
    assert "saves are synchronous from now on: not enough memory for host buffers of" in caplog.text


def test_the_memory_that_is_taken_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "keepstep")
    with checkpointer(tmp_path) as saver:
        saver.resume()
    assert "asynchronous saves: host buffers of 0.00 GiB on" in caplog.text


def test_buffers_are_no_part_of_forked_children(tmp_path: Path) -> None:
    with checkpointer(tmp_path, Job(3_000_000)) as saver:
        saver.resume()
        buffer = saver._saver._snapshots._buffer
        assert buffer is not None
        flags, found = [], False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if "-" in line.split()[0] and ":" not in line.split()[0]:
                begin, end = (int(part, 16) for part in line.split()[0].split("-"))
                found = end - begin >= buffer.size
            elif found and line.startswith("VmFlags"):
                flags.append(line)
        assert any(" dc" in line for line in flags)


def test_a_forked_child_may_drop_what_it_inherits_and_may_save_by_itself(tmp_path: Path) -> None:
    """Its parent's buffers are not there: other memory may lie at their addresses."""
    saver = checkpointer(tmp_path / "parent", Job(3_000_000))
    saver.save(1)
    saver.wait()

    def drops() -> int:
        nonlocal saver
        held = [torch.full((2950, 2950), float(number)) for number in range(5)]  # take the free addresses
        saver._saver.release()
        del saver
        gc.unfreeze()
        gc.collect()
        return sum(int(one.mean()) for one in held)

    def saves() -> int:
        saver.save(2)
        saver.wait()
        return 1

    assert forks.values(drops) == [10]
    assert forks.values(saves) == [1]
    assert steps(tmp_path / "parent") == [1, 2]
    saver.close()


class Stopped(Exception):
    pass


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_with_background_saves_is_twin_equal(tmp_path: Path, ranks: int) -> None:
    def stop(step: int) -> None:
        if step == 8:
            raise Stopped

    def first() -> None:
        with contextlib.suppress(Stopped):
            tiny.train(tiny.Tiny(str(tmp_path / "b"), total=12, period=3, mode="async", on_step=stop))

    whole = forks.values(lambda: tiny.train(tiny.Tiny(str(tmp_path / "a"), total=12, period=3)), ranks)
    forks.values(first, ranks)
    resumed = forks.values(lambda: tiny.train(tiny.Tiny(str(tmp_path / "b"), total=12, period=3, mode="async")), ranks)
    assert [one["start"] for one in resumed] == [6] * ranks
    assert [{**one, "start": 0} for one in resumed] == [{**one, "start": 0} for one in whole]


class TestRanks:
    @pytest.mark.parametrize(
        ("phase", "rank"), [("write_shard", 0), ("write_shard", 1), ("write_shard", 3), ("_commit", 0), ("publish", 0)]
    )
    def test_one_rank_fails_and_all_raise_the_same_error_at_the_same_step(
        self, tmp_path: Path, rank: int, phase: str
    ) -> None:
        def work() -> tuple[str, int, int, list[int]]:
            state = keepstep.JobState(model=tiny.build()["model"])
            with keepstep.Checkpointer(
                config(tmp_path, period_steps=2), state, world=forks.world, handle_signals=False
            ) as saver:
                original = getattr(save_module, phase)

                def broken(*arguments: Any, **options: Any) -> Any:
                    if forks.world.rank == rank:
                        raise OSError(5, "Input/output error")
                    return original(*arguments, **options)

                setattr(save_module, phase, broken)
                message, failed, at = "", -1, 0
                for step in range(2, 2000):
                    try:
                        saver.save_if_due(2 if step == 2 else 2 * step + 1)
                    except SaveError as error:
                        message, failed, at = str(error), error.rank, step
                        break
                setattr(save_module, phase, original)
                forks.world.gather(None)
                saver.save(6)
            return message, failed, at, steps(tmp_path)

        results = forks.values(work, 4, seconds=30)
        assert len(set(map(str, results))) == 1
        message, failed, _, committed = results[0]
        assert failed == rank
        assert f"on rank {rank} of 4" in message
        assert "Input/output error" in message
        assert committed == [6]

    def test_a_rank_that_dies_ends_the_others_in_bounded_time(self, tmp_path: Path) -> None:
        def work() -> None:
            background.PATIENCE_SECONDS = 2.0
            state = keepstep.JobState(model=tiny.build()["model"])
            with keepstep.Checkpointer(
                config(tmp_path, period_steps=1), state, world=forks.world, handle_signals=False
            ) as saver:
                for step in range(1, 100):
                    if forks.world.rank == 2 and step == 3:
                        os.kill(os.getpid(), 9)
                    saver.save_if_due(step)

        ended = forks.run(work, 4, seconds=60)
        assert ended[2].killed
        assert all(end.error is not None for rank, end in enumerate(ended) if rank != 2)
        assert set(steps(tmp_path)) <= {1, 2}
        assert steps(tmp_path)
