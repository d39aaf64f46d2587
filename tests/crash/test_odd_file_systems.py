"""Runs on mounted drives with odd manners: killed where it hurts, they end in the same bits or say what is wrong."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint import save
from keepstep.errors import SaveError
from tests.rig import forks, tiny
from tests.rig.oddfs import Manners, mounted, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be mounted")

MANNERS = {
    "none": Manners(),
    "no-direct": Manners(direct=False),
    "no-links": Manners(links=False),
    "no-exchange": Manners(exchange=False),
    "no-folder-sync": Manners(folder_sync=False),
    "slow-rename": Manners(rename_seconds=0.3),
    "rename-copies": Manners(rename_copies=0.05),
    "late-names": Manners(late_names=1.0),
    "late-content": Manners(late_content=0.5),
    "ahead": Manners(skew=300.0),
    "behind": Manners(skew=-300.0),
    "all": Manners(
        direct=False, links=False, exchange=False, folder_sync=False, rename_seconds=0.05, late_names=0.5, skew=300.0
    ),
}


def killed(how: str, at: int) -> Callable[[int], None]:
    """Ends the process at a step, or in the save that follows it."""

    def now(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def on_step(step: int) -> None:
        publish = save.publish
        if step != at:
            return
        if how == "step":
            now()
        elif how == "before the rename":
            save.publish = now
        elif how == "after the rename":
            save.publish = lambda source, target: now(publish(source, target))
        elif how == "in the rename":
            # The default of this signal ends a process as SIGKILL does, in a system call too.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            save.publish = lambda source, target: now(
                signal.setitimer(signal.ITIMER_REAL, 0.02), publish(source, target)
            )

    return on_step


KILLS = (("step", 3), ("before the rename", 4), ("in the rename", 6), ("after the rename", 8))


def job(drive: Path, log: Path, **more: Any) -> tiny.Tiny:
    return tiny.Tiny(str(drive), total=10, period=2, log=str(log), **more)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Any]:
    """The end of the job, and its rows, where nothing is odd and nobody kills it."""
    folder = tmp_path_factory.mktemp("plain")
    (end,) = forks.values(lambda: tiny.train(job(folder / "runs", folder / "rows")))
    return end, tiny.read_log(str(folder / "rows"))


IN_EVERY_RUN = ("rename-copies", "late-content", "all")


@pytest.mark.parametrize(
    "name", [name if name in IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.slow) for name in MANNERS]
)
def test_a_run_that_is_killed_four_times_ends_in_the_same_bits(name: str, tmp_path: Path, unbroken: Any) -> None:
    rows = tmp_path / "rows"
    with mounted(tmp_path / "odd", MANNERS[name]) as drive:
        for how, at in KILLS:
            (ended,) = forks.run(lambda how=how, at=at: tiny.train(job(drive, rows, on_step=killed(how, at))))
            assert ended.status in (-signal.SIGKILL, -signal.SIGALRM), (how, ended)
        (end,) = forks.values(lambda: tiny.train(job(drive, rows)))
    assert {**end, "start": 0} == unbroken[0]
    assert tiny.read_log(str(rows)) == unbroken[1]
    left = sorted(os.listdir(tmp_path / "odd" / "server" / "tiny"))
    # What is seen late is deleted late.
    assert {"save-10", "save-8"} <= set(left)
    assert "late" in name or name == "all" or left == ["save-10", "save-8", "saves.jsonl"]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.slow
def test_two_ranks_that_are_killed_end_in_the_same_bits(mode: str, tmp_path: Path) -> None:
    def run(drive: Path, at: int = 0) -> Any:
        on_step = killed("step", at) if at else None
        return lambda: tiny.train(tiny.Tiny(str(drive), total=10, period=2, mode=mode, on_step=on_step))

    unbroken = forks.values(run(tmp_path / "plain"), 2)
    with mounted(tmp_path / "odd", MANNERS["all"]) as drive:
        for at in (3, 7):
            assert all(ended.killed for ended in forks.run(run(drive, at), 2))
        assert [{**end, "start": 0} for end in forks.values(run(drive), 2)] == unbroken


def test_folders_that_cannot_be_renamed_are_an_error_that_says_so(tmp_path: Path) -> None:
    with mounted(tmp_path / "odd", Manners(folder_rename=False)) as drive:
        with pytest.raises(SaveError, match="cannot rename a folder that is not empty"):
            forks.values(lambda: tiny.train(job(drive, tmp_path / "rows")))
        left = os.listdir(tmp_path / "odd" / "server" / "tiny")
    assert [one for one in left if "save-" in one] == []
