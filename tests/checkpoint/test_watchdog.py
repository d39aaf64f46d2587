"""A rank that hangs: where it does is printed, and the others do not wait for ever."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import keepstep
from keepstep.checkpoint.watchdog import watched
from keepstep.dist.background import BackgroundWorld
from keepstep.dist.mailbox import LocalMailbox
from keepstep.errors import RankFailedError, SaveError
from keepstep.storage import writer as writer_module
from tests.rig import forks


def the_place_that_hangs(seconds: float) -> None:
    time.sleep(seconds)


def test_the_stacks_are_printed_and_the_work_goes_on(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with capfd.disabled():
        pass
    with watched("writing", 0.05):
        the_place_that_hangs(0.3)
    assert "the_place_that_hangs" in capfd.readouterr().err
    assert "writing has taken 0 s so far" in caplog.text
    before = threading.active_count()
    with watched("writing", 60):
        pass
    time.sleep(0.05)
    assert threading.active_count() <= before
    assert "the_place_that_hangs" not in capfd.readouterr().err


def test_one_that_lives_and_hangs_is_not_waited_for_for_ever() -> None:
    mailbox = LocalMailbox()
    hanging = BackgroundWorld(1, 2, mailbox)
    with (
        hanging.beating(),
        pytest.raises(RankFailedError, match="rank 1 lives, and has not answered for 1 s: it hangs"),
    ):
        BackgroundWorld(0, 2, mailbox, longest=1.0).to_main("mine")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_rank_whose_write_hangs_is_named_in_bounded_time(tmp_path: Path, mode: str) -> None:
    def save() -> str:
        write = writer_module._Target.write

        def hang(self: Any, piece: memoryview, offset: int) -> None:
            if forks.world.rank == 1:
                deadline = time.monotonic() + 30
                while not (tmp_path / "told").exists() and time.monotonic() < deadline:
                    time.sleep(0.05)
            write(self, piece, offset)

        writer_module._Target.write = hang
        config = keepstep.CheckpointingConfig(
            save_dir=str(tmp_path), period_steps=1, mode=mode, timeout_seconds=2, hang_seconds=1
        )
        from datetime import timedelta

        from keepstep.dist.world import GroupWorld

        state = keepstep.JobState(model=nn.Linear(4, 4))
        world = GroupWorld(timedelta(seconds=2)) if mode == "sync" else forks.world
        saver = keepstep.Checkpointer(config, state, world=world, handle_signals=False)
        started = time.monotonic()
        try:
            saver.save(1)
            saver.wait()
        except (SaveError, RuntimeError) as error:
            assert time.monotonic() - started < 30
            (tmp_path / "told").touch()
            return f"{type(error).__name__}: {error}"
        return "saved"

    told = [end.value for end in forks.run(save, 2)]
    assert told[0] != "saved"
    if mode == "async":
        assert "rank 1 lives, and has not answered for 2 s: it hangs" in told[0]
    assert not (tmp_path / "save-1").exists()
