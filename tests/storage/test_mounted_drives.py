"""Files, locks and looks on mounted drives that tell names and sizes late."""

import os
import signal
import time
from pathlib import Path

import pytest

from keepstep.checkpoint.resume import look
from keepstep.dist.world import SingleWorld
from keepstep.errors import RunInUseError
from keepstep.plan.resume import Start
from keepstep.storage.local import remove_tree
from keepstep.storage.lock import acquire_lock
from keepstep.storage.lock_files import lock_path
from keepstep.storage.mount import mount_of, volatile
from tests.rig import forks
from tests.rig.folders import make_checkpoint
from tests.rig.oddfs import Manners, mounted, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be mounted")


def test_which_file_system_it_is(tmp_path: Path) -> None:
    with mounted(tmp_path, Manners()) as drive:
        found = mount_of(drive / "runs" / "mine")
        assert found is not None
        assert (found.kind, found.source, found.point) == ("fuse.odd", "server:/odd", str(drive))
        assert volatile(drive) == ""


def test_a_folder_whose_listing_is_old_is_deleted_all_the_same(tmp_path: Path) -> None:
    with mounted(tmp_path, Manners(late_names=0.4)) as drive:
        folder = drive / "folder"
        folder.mkdir()
        (folder / "goes").touch()
        assert os.listdir(folder) == ["goes"]
        (folder / "goes").unlink()
        (folder / "comes").touch()
        remove_tree(folder)
        assert os.listdir(tmp_path / "server") == []


def test_a_lock_that_is_not_listed_yet_is_held(tmp_path: Path) -> None:
    with mounted(tmp_path, Manners(late_names=60)) as drive:
        (drive / ".keepstep").mkdir()
        assert os.listdir(drive / ".keepstep") == []
        lock = acquire_lock(drive)
        lock.confirm()
        assert acquire_lock(drive) is lock
        lock.confirm()
        # Another one takes over: that is not listed either.
        lock_path(drive, lock.number + 1).write_text("{}")
        with pytest.raises(RunInUseError, match="was taken over"):
            lock.confirm()
        lock.release()
        lock.release()


def test_a_lock_whose_text_comes_late_is_waited_for_and_not_for_its_lease(tmp_path: Path) -> None:
    def die() -> None:
        acquire_lock(drive)
        os.kill(os.getpid(), signal.SIGKILL)

    with mounted(tmp_path, Manners(late_content=0.5)) as drive:
        forks.run(die)
        started = time.monotonic()
        lock = acquire_lock(drive)
        assert lock.number == 2
        assert time.monotonic() - started < 30
        lock.release()


def test_a_checkpoint_whose_bytes_come_late_is_no_damaged_one(tmp_path: Path) -> None:
    with mounted(tmp_path, Manners(late_content=0.7)) as drive:
        make_checkpoint(drive / "run", 5)
        decision = look(drive / "run", SingleWorld())
    assert (decision.start, decision.candidates) == (Start.RESUME, (5,))


@pytest.mark.slow
def test_one_that_stays_short_is_damaged(tmp_path: Path) -> None:
    with mounted(tmp_path, Manners()) as drive:
        make_checkpoint(drive / "run", 5)
        os.truncate(drive / "run" / "save-5" / "__0_0.distcp", 7)
        decision = look(drive / "run", SingleWorld())
    assert decision.start is Start.NOTHING_GOOD
