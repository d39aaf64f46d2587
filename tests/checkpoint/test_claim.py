"""Who may write to a run's folder, and do all ranks mean the same one?"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import keepstep
from keepstep.checkpoint import claim as claim_module
from keepstep.errors import ResumeError, RunInUseError, SaveError
from tests.rig import forks


def checkpointer(folder: Path, **config: Any) -> keepstep.Checkpointer:
    settings = {"save_dir": str(folder), "period_steps": 5, **config}
    return keepstep.Checkpointer(
        keepstep.CheckpointingConfig(**settings), keepstep.JobState(model=nn.Linear(4, 4)), "run", world=forks.world
    )


def locks(folder: Path) -> list[str]:
    place = folder / "run" / ".keepstep"
    return sorted(os.listdir(place)) if place.is_dir() else []


@pytest.mark.parametrize("size", [1, 2])
def test_a_second_job_is_refused_at_its_start_and_the_first_goes_on(tmp_path: Path, size: int) -> None:
    def first() -> list[int]:
        with checkpointer(tmp_path) as saver:
            saver.resume()
            saver.save(5)
            (tmp_path / "holds").touch()
            while not (tmp_path / "go on").exists():
                time.sleep(0.01)
            saver.save(10)
        return [5, 10]

    def second() -> int:
        with checkpointer(tmp_path) as saver:
            return saver.resume()

    ranks = forks.start(first, size)
    for rank in ranks:
        rank.go()
    while not (tmp_path / "holds").exists():
        time.sleep(0.01)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "save-5").iterdir()}
    refused = forks.run(second, size)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "save-5").iterdir()} == before
    (tmp_path / "go on").touch()
    assert [end.value for end in forks.wait_all(ranks)] == [[5, 10]] * size
    for end in refused:
        assert isinstance(end.error, RunInUseError)
        assert f"in use by process {ranks[0].pid} on " in str(end.error)
    assert forks.values(second, size) == [10] * size
    assert locks(tmp_path) == []


def test_who_only_reads_is_not_refused(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saver:
        saver.resume()
        saver.save(5)

        def read() -> int:
            with checkpointer(tmp_path, period_steps="disable") as reader:
                return reader.resume()

        assert forks.values(read) == [5]


def test_the_folder_is_given_back_at_the_end_by_an_error_and_without_close(tmp_path: Path) -> None:
    saver = checkpointer(tmp_path)
    saver.resume()
    assert locks(tmp_path) == ["lock-1"]
    saver.close()
    assert locks(tmp_path) == []
    with pytest.raises(ValueError, match="negative"), checkpointer(tmp_path) as saver:
        saver.save(-saver.resume() - 1)
    assert locks(tmp_path) == []
    saver = checkpointer(tmp_path)
    saver.save(5)
    assert locks(tmp_path)
    del saver
    assert locks(tmp_path) == []


def test_a_process_that_ends_without_close_gives_it_back(tmp_path: Path) -> None:
    script = f"""
import torch, keepstep
config = keepstep.CheckpointingConfig(save_dir={str(tmp_path)!r}, period_steps=5, mode="async")
saver = keepstep.Checkpointer(config, keepstep.JobState(model=torch.nn.Linear(4, 4)), "run")
saver.resume()
saver.save(5)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert (tmp_path / "run" / "save-5").is_dir()
    assert locks(tmp_path) == []


def test_two_of_one_process_may_follow_each_other(tmp_path: Path) -> None:
    first, second = checkpointer(tmp_path), checkpointer(tmp_path)
    first.resume()
    first.save(5)
    assert second.resume() == 5
    second.save(10)
    first.close()
    second.save(15)
    second.close()
    assert locks(tmp_path) == []


def test_a_refused_or_failed_resume_leaves_nothing_held(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saver:
        saver.save(5)
    saver = checkpointer(tmp_path)
    with pytest.raises(FileNotFoundError):
        saver.resume(step=7)
    assert locks(tmp_path) == []


def test_a_mistyped_folder_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        checkpointer(tmp_path / "wrong").resume(step=5)
    assert not (tmp_path / "wrong").exists()


def test_one_that_was_replaced_commits_nothing(tmp_path: Path) -> None:
    with checkpointer(tmp_path) as saver:
        saver.resume()
        saver.save(5)
        # As after a long silence: another host has taken over.
        stranger = tmp_path / "run" / ".keepstep" / "lock-7"
        stranger.write_text('{"host": "far", "pid": 3, "boot": "b", "namespace": "n", "started": "1"}')
        with pytest.raises(RunInUseError, match="was taken over by process 3 on far"):
            saver.save(10)
    assert not (tmp_path / "run" / "save-10").exists()
    assert locks(tmp_path)[-1:] == ["lock-7"]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_all_ranks_stop_for_that_even_where_failed_saves_are_tolerated(tmp_path: Path, mode: str) -> None:
    def start() -> int:
        with checkpointer(tmp_path, on_save_error="continue", mode=mode) as saver:
            saver.resume()
            (tmp_path / "run" / ".keepstep" / "lock-7").write_text("{}")
            saver.save(5)
            saver.save(10)
        return 10

    for end in forks.run(start, 2):
        assert isinstance(end.error, SaveError)
        assert "was taken over" in str(end.error)


def test_one_that_wakes_up_between_its_last_look_and_the_rename_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The narrowest place: asked, told that it holds, and then put to sleep for longer than its lease."""
    from keepstep.checkpoint import save as save_module

    publish = save_module.publish

    def sleep_before(source: Path, target: Path) -> None:
        # Another host takes over meanwhile.
        code = (
            "import sys; from pathlib import Path; from keepstep.storage import lock; "
            "lock.judge = lambda *a, **k: lock.Claim.GONE; "
            "l = lock.acquire_lock(Path(sys.argv[1])); l._over.set(); import os; os._exit(0)"
        )
        subprocess.run([sys.executable, "-c", code, str(target.parent)], check=True, timeout=60)
        publish(source, target)

    with checkpointer(tmp_path) as saver:
        saver.resume()
        saver.save(5)
        monkeypatch.setattr(save_module, "publish", sleep_before)
        with pytest.raises(SaveError, match="committing failed"):
            saver.save(10)
    assert not (tmp_path / "run" / "save-10").exists()


@pytest.mark.parametrize("apart", [[2, 3], [1], [3]])
def test_nodes_that_do_not_share_the_folder_are_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: list[int]
) -> None:
    monkeypatch.setattr(claim_module, "_RETRY_SECONDS", (0.05, 0.2))  # nothing comes late here

    def start() -> int:
        node = "n1" if forks.world.rank in apart else "n0"
        with checkpointer(tmp_path / node) as saver:
            return saver.resume()

    ended = forks.run(start, 4)
    assert len({str(end.error) for end in ended}) == 1
    assert isinstance(ended[0].error, ResumeError)
    assert "the ranks do not share" in str(ended[0].error)
    for rank in range(1, 4):
        assert (f"rank {rank} (" in str(ended[0].error)) == (rank in apart)
    assert not list(tmp_path.rglob("lock-*"))
    assert not list(tmp_path.rglob("shared-*"))


def test_a_folder_that_a_rank_can_read_but_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start() -> int:
        if forks.world.rank == 1:

            def refuse(path: Path, *_: Any, **__: Any) -> None:
                raise PermissionError(13, "Permission denied", str(path))

            Path.touch = refuse  # type: ignore[method-assign]
        with checkpointer(tmp_path) as saver:
            return saver.resume()

    ended = forks.run(start, 2)
    assert "rank 1 (" in str(ended[0].error)
    assert "Permission denied" in str(ended[0].error)


def test_thousands_that_are_missing_are_waited_for_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_module, "_RETRY_SECONDS", (0.05, 0.2))
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    assert claim_module._appearing(tmp_path, 1, range(1, 2000)) == []
    assert waited == [0.0, 0.05, 0.2]
