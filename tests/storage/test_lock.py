"""One job in a folder: neighbours, strangers whose machine may be gone, and holders that wake up too late."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from keepstep.errors import RunInUseError
from keepstep.plan.lock import Claim, Process, judge
from keepstep.storage import lock as lock_module
from keepstep.storage import lock_files
from keepstep.storage.lock import acquire_lock
from tests.rig import forks

ME = Process("here", 10, "boot", "pid:[1]", "100")
BEAT, LEASE = 0.05, 0.6


def locks(folder: Path) -> list[str]:
    place = folder / ".keepstep"
    return sorted(os.listdir(place)) if place.is_dir() else []


class TestJudge:
    @pytest.mark.parametrize(
        ("holder", "lives", "silent", "claim"),
        [
            (ME, True, 1000.0, Claim.OWN),
            (Process("here", 11, "boot", "pid:[1]", "90"), True, 1000.0, Claim.HELD),
            (Process("here", 11, "boot", "pid:[1]", "90"), False, 0.0, Claim.GONE),
            # The same number in another container, on another machine, or after a reboot tells nothing.
            (Process("here", 10, "boot", "pid:[2]", "100"), True, 1.0, Claim.UNKNOWN),
            (Process("here", 10, "other", "pid:[1]", "100"), True, 1.0, Claim.UNKNOWN),
            (Process("there", 1, "other", "pid:[1]", "100"), True, 61.0, Claim.GONE),
            (Process("here", 10), True, 1.0, Claim.UNKNOWN),
            (None, False, 1.0, Claim.UNKNOWN),
            (None, False, 61.0, Claim.GONE),
        ],
    )
    def test_only_one_kernel_or_silence_tells(
        self, holder: Process | None, lives: bool, silent: float, claim: Claim
    ) -> None:
        assert judge(holder, ME, lives=lives, silent=silent) is claim


def test_a_lock_comes_and_goes_without_a_trace(tmp_path: Path) -> None:
    lock = acquire_lock(tmp_path / "run")
    assert locks(tmp_path / "run") == ["lock-1"]
    lock.confirm()
    lock.release()
    assert os.listdir(tmp_path / "run") == []


def test_numbers_grow_with_every_user_of_one_process(tmp_path: Path) -> None:
    first = acquire_lock(tmp_path)
    assert first.number == 1
    second = acquire_lock(tmp_path)
    assert (second.number, locks(tmp_path)) == (2, ["lock-2"])
    second.release()
    assert locks(tmp_path) == ["lock-2"]
    first.confirm()
    first.release()
    assert locks(tmp_path) == []


def hold_in_a_fork(folder: Path, until: Path) -> forks.Rank:
    def hold() -> None:
        acquire_lock(folder, beat=BEAT, lease=LEASE)
        until.with_suffix(".ready").touch()
        while not until.exists():
            time.sleep(0.01)

    (rank,) = forks.start(hold)
    rank.go()
    while not until.with_suffix(".ready").exists():
        time.sleep(0.01)
    return rank


def test_a_living_neighbour_is_refused_at_once_by_name(tmp_path: Path) -> None:
    rank = hold_in_a_fork(tmp_path / "run", tmp_path / "end")
    started = time.monotonic()
    with pytest.raises(RunInUseError, match=rf"in use by process {rank.pid} on .*, last sign of life \d+ s ago"):
        acquire_lock(tmp_path / "run")
    assert time.monotonic() - started < 5
    (tmp_path / "end").touch()
    assert rank.wait().status == 0


def test_one_that_hangs_still_holds(tmp_path: Path) -> None:
    rank = hold_in_a_fork(tmp_path / "run", tmp_path / "end")
    rank.kill(signal.SIGSTOP)
    time.sleep(2 * LEASE)
    with pytest.raises(RunInUseError, match=f"process {rank.pid}"):
        acquire_lock(tmp_path / "run", lease=LEASE)
    rank.kill()
    rank.wait()


def test_a_dead_neighbour_does_not_block(tmp_path: Path) -> None:
    rank = hold_in_a_fork(tmp_path / "run", tmp_path / "end")
    leftover = tmp_path / "run" / ".save-5.tmp-1"
    leftover.mkdir()
    rank.kill()
    while lock_module.lives(Process("", rank.pid, started=lock_module.this_process().started)):
        time.sleep(0.01)
    time.sleep(0.1)
    lock = acquire_lock(tmp_path / "run")  # before anybody has waited for it: a zombie is dead
    rank.wait()
    assert (lock.number, locks(tmp_path / "run")) == (2, ["lock-2"])
    # What it could still commit, should it not be dead after all, has another name now.
    assert not leftover.exists()
    assert (tmp_path / "run" / ".save-5.del-1").is_dir()
    lock.release()


def a_stranger(folder: Path, number: int = 3) -> Path:
    """The lock of a process that this kernel does not know."""
    (folder / ".keepstep").mkdir(parents=True, exist_ok=True)
    path = folder / ".keepstep" / f"lock-{number}"
    path.write_text(json.dumps({"host": "far", "pid": 1, "boot": "b", "namespace": "n", "started": "1", "since": ""}))
    return path


def test_a_stranger_that_gives_signs_of_life_is_refused(tmp_path: Path) -> None:
    path, over = a_stranger(tmp_path), threading.Event()

    def beat() -> None:
        while not over.wait(0.1):
            os.utime(path)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(RunInUseError, match="in use by process 1 on far"):
            acquire_lock(tmp_path, lease=30)
    finally:
        over.set()
        thread.join()
    assert locks(tmp_path) == ["lock-3"]


def test_a_silent_stranger_is_replaced_when_its_lease_is_over(tmp_path: Path) -> None:
    a_stranger(tmp_path)
    started = time.monotonic()
    lock = acquire_lock(tmp_path, lease=LEASE)
    assert time.monotonic() - started >= LEASE * 0.9
    assert (lock.number, locks(tmp_path)) == (4, ["lock-4"])
    lock.release()


def test_a_lock_that_cannot_be_read_is_a_stranger(tmp_path: Path) -> None:
    a_stranger(tmp_path).write_bytes(b"\xff{")
    lock = acquire_lock(tmp_path, lease=LEASE)
    assert lock.number == 4
    lock.release()


def test_a_holder_that_was_replaced_cannot_go_on(tmp_path: Path) -> None:
    lock = acquire_lock(tmp_path, beat=1000)
    a_stranger(tmp_path, 2)
    with pytest.raises(RunInUseError, match="was taken over by process 1 on far"):
        lock.confirm()
    assert lock.is_lost
    lock.release()
    # Also when whoever took over has come and gone.
    lock = acquire_lock(tmp_path / "other", beat=1000)
    lock.path.unlink()
    with pytest.raises(RunInUseError, match="somebody who has removed its lock"):
        lock.confirm()
    lock.release()


def test_a_process_that_was_replaced_does_not_steal_the_folder_back(tmp_path: Path) -> None:
    """It stood still for longer than its lease, and begins again without knowing."""
    first = acquire_lock(tmp_path, beat=1000)
    rank = hold_in_a_fork(tmp_path / "other", tmp_path / "end")
    shutil.copy(tmp_path / "other" / ".keepstep" / "lock-1", tmp_path / ".keepstep" / "lock-2")
    try:
        with pytest.raises(RunInUseError, match=f"in use by process {rank.pid}"):
            acquire_lock(tmp_path)
        assert locks(tmp_path) == ["lock-1", "lock-2"]
    finally:
        (tmp_path / "end").touch()
        rank.wait()
        first.release()


def test_of_many_that_take_over_one_wins(tmp_path: Path) -> None:
    a_stranger(tmp_path)

    def take() -> str:
        try:
            number = acquire_lock(tmp_path, beat=BEAT, lease=LEASE).number
        except RunInUseError as error:
            return str(error)
        time.sleep(2)  # and lives on, while the others still try
        return f"took {number}"

    ranks = [rank for _ in range(6) for rank in forks.start(take)]
    for rank in ranks:
        rank.go()
    told = [end.value for end in forks.wait_all(ranks)]
    assert [text for text in told if text.startswith("took")] == ["took 4"]
    assert sum("in use by process" in text for text in told) == 5


def test_where_links_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(lock_module.os, "link", refuse)
    lock = acquire_lock(tmp_path)
    assert locks(tmp_path) == ["lock-1"]
    lock.release()


_CONTAINER = """
import os, socket, sys, time
from pathlib import Path
from keepstep.errors import RunInUseError
from keepstep.storage.lock import acquire_lock
socket.gethostname = lambda: sys.argv[2]
try:
    lock = acquire_lock(Path(sys.argv[1]), beat=0.1, lease=1.5)
except RunInUseError as error:
    print("refused", error, flush=True)
    raise SystemExit(1)
print("holds", lock.number, os.getpid(), flush=True)
for line in sys.stdin:
    try:
        lock.confirm()
        print("confirmed", flush=True)
    except RunInUseError as error:
        print("lost", error, flush=True)
"""


def container(folder: Path, host: str) -> subprocess.Popen[str]:
    """A process that is number 1 in a namespace of its own, as in a container."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", _CONTAINER]
    return subprocess.Popen([*command, str(folder), host], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_containers_in_which_every_job_is_process_1(tmp_path: Path) -> None:
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "--pid", "--fork", "true"], check=False).returncode
    ):
        pytest.skip("process namespaces cannot be made here")
    first = container(tmp_path, "node-a")
    try:
        assert first.stdout is not None
        assert first.stdin is not None
        assert first.stdout.readline().split() == ["holds", "1", "1"]
        # One that lives is refused by its beat, though the kernel has a process 1 for everybody.
        second = container(tmp_path, "node-b")
        out, _ = second.communicate(timeout=30)
        assert "refused" in out
        assert "in use by process 1 on node-a" in out
        # A machine that stands still is replaced when its lease is over; when it wakes up it has lost.
        inner = _inside(first.pid)
        os.kill(inner, signal.SIGSTOP)
        third = container(tmp_path, "node-c")
        assert third.stdout is not None
        assert third.stdin is not None
        assert third.stdout.readline().split() == ["holds", "2", "1"]
        os.kill(inner, signal.SIGCONT)
        print("ask", file=first.stdin, flush=True)
        assert first.stdout.readline().startswith("lost")
        print("ask", file=third.stdin, flush=True)
        assert third.stdout.readline().strip() == "confirmed"
        third.communicate(timeout=30)
    finally:
        first.kill()
        first.communicate()


def _inside(outer: int) -> int:
    """The process that `unshare` has forked, by its number out here."""
    text = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
    return int(text[0])


def test_a_listing_that_is_late_takes_no_lock_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_files.os, "listdir", lambda folder: [])
    lock = acquire_lock(tmp_path)
    lock.confirm()
    assert acquire_lock(tmp_path) is lock
    lock.confirm()
    lock_files.lock_path(tmp_path, lock.number + 1).write_text("{}")
    with pytest.raises(RunInUseError, match="was taken over"):
        lock.confirm()
    lock.release()
    lock.release()
