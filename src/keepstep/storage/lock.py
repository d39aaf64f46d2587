"""One job at a time in a run's folder: a lease that is kept alive, and numbers that fence off who has lost it.

The lock of a run is a file `.keepstep/lock-<number>`; the highest number holds. It is made in one step (a link to a
file that is complete), so of several that take over one wins, and it never comes to be that two have one number. Its
holder touches it every few seconds. Age is told by the clock of the file system alone: those of hosts differ.
"""

import contextlib
import logging
import os
import threading
import time
from pathlib import Path

from keepstep.errors import RunInUseError
from keepstep.plan import layout
from keepstep.plan.lock import BEAT_SECONDS, LEASE_SECONDS, Claim, Process, judge
from keepstep.storage.local import make_folders, remove_tree
from keepstep.storage.lock_files import (
    FileSystemClock,
    beat_of,
    holder_in,
    lock_path,
    make_lock,
    newest,
    numbers,
    sweep,
)
from keepstep.storage.process import lives, this_process
from keepstep.storage.survey import last_attempt, survey

logger = logging.getLogger("keepstep")

_AGAIN_SECONDS = 0.005


class RunLock:
    """Holds a run's folder from `acquire_lock` to `release`. One process may have several users of it.

    Attributes:
        number: this holder's; the attempt of the run as well. It grows with each holder.
    """

    def __init__(self, folder: Path, number: int, beat: float = BEAT_SECONDS) -> None:
        self.folder = folder
        self.number = number
        self.users = 1
        self._owner = os.getpid()
        self._is_lost = False
        self._over = threading.Event()
        self._beat = beat
        self._thread = threading.Thread(target=self._keep_alive, name="keepstep-lock", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        """The lock file."""
        return lock_path(self.folder, self.number)

    @property
    def is_own(self) -> bool:
        """Whether it belongs to this process, and not to the one that this was forked from."""
        return self._owner == os.getpid()

    @property
    def is_lost(self) -> bool:
        """Whether somebody else was seen to hold the folder."""
        return self._is_lost

    def confirm(self) -> None:
        """Ask right before something is changed: is the folder still held?

        Raises:
            RunInUseError: it is not; the message says by whom it was taken.
        """
        number, holder = newest(self.folder, self.number)
        if number == self.number and not self._is_lost:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.path)
                return
        self._is_lost = True
        if not self.folder.is_dir():
            raise RunInUseError(f"{self.folder} is gone: it was moved, deleted or unmounted while this job ran")
        who = _describe(holder) if holder is not None else "somebody who has removed its lock"
        raise RunInUseError(
            f"{self.folder} was taken over by {who} while this job gave no sign of life; nothing more is written there"
        )

    def release(self) -> None:
        """Give the folder back when the last user does so. In a forked process it does nothing."""
        self.users -= 1
        if not self.is_own or self.users > 0:
            return
        self._over.set()
        _held.pop(_key(self.folder), None)
        with contextlib.suppress(OSError):
            if not self._is_lost:
                self.path.unlink(missing_ok=True)
            (self.folder / layout.KEEPSTEP_FOLDER).rmdir()

    def _advance(self, number: int) -> None:
        """One more user in this process: a number of its own, so that its attempts are told apart."""
        before = self.path
        make_lock(self.folder, number)
        self.number = number
        self.users += 1
        before.unlink(missing_ok=True)

    def _keep_alive(self) -> None:
        while not self._over.wait(self._beat):
            path = self.path
            try:
                os.utime(path)
            except FileNotFoundError:
                if path == self.path and not self._over.is_set():
                    self._is_lost = True
                    return
            except OSError as error:
                logger.warning("could not touch %s: %s", path, error)


_held: dict[str, RunLock] = {}


def acquire_lock(folder: Path, *, beat: float = BEAT_SECONDS, lease: float = LEASE_SECONDS, above: int = 0) -> RunLock:
    """Hold a run's folder, which is made if it is not there.

    A holder that the kernel knows to be dead is replaced at once. One on another host, or in another container, is
    watched until it gives a sign of life or its lease is over.

    Args:
        folder: the run's folder.
        beat: seconds between signs of life.
        lease: seconds without one after which a holder is taken for gone.
        above: the number is higher than this: that of an attempt which has left its traces elsewhere.

    Raises:
        RunInUseError: another job holds it: host, process, since when.
        OSError: the folder cannot be made or written.
    """
    held = _held.get(_key(folder))
    if held is not None and held.is_own:
        # Asked, and not taken for granted: a number above that of whoever has taken over would steal the folder back.
        with contextlib.suppress(RunInUseError):
            held.confirm()
            held._advance(max(_next_number(folder, held.number), above + 1))
            return held
    make_folders(folder / layout.KEEPSTEP_FOLDER)
    while True:
        number = _take(folder, lease, above)
        if number is None:
            time.sleep(_AGAIN_SECONDS)
            continue
        lock = RunLock(folder, number, beat)
        _held[_key(folder)] = lock
        return lock


def look_at_lock(folder: Path) -> tuple[Claim, str]:
    """What an `acquire_lock` would meet, at once and without changing anything.

    Returns:
        GONE when nobody holds the folder, HELD when a process does that lives, UNKNOWN when one on another host or in
        another container may: only waiting tells; and the holder in words.
    """
    number, holder = newest(folder)
    if not number:
        return Claim.GONE, ""
    claim = judge(holder, this_process(), lives=holder is not None and lives(holder), silent=0.0)
    return claim, _describe(holder)


def is_in_use(folder: Path, lease: float = LEASE_SECONDS) -> bool:
    """Whether a job is at work in a folder, or may be, without waiting: a lock of another machine counts by its age."""
    number, _ = newest(folder)
    if look_at_lock(folder)[0] is not Claim.UNKNOWN:
        return look_at_lock(folder)[0] is not Claim.GONE
    beat = beat_of(lock_path(folder, number))
    if beat is None:
        return False
    try:
        with FileSystemClock(folder) as clock:
            return clock.now() - beat <= lease
    except OSError:  # nothing can be written there, so its clock cannot be asked
        return time.time() - beat <= lease


def _take(folder: Path, lease: float, above: int) -> int | None:
    """Try once. Returns the number, or None when somebody else was faster."""
    before, holder = newest(folder)
    if before and not _is_free(folder, before, holder, lease):
        return None
    # Counted from the lock that was judged: several who judge the same one want the same number, and one gets it.
    number = max(before, last_attempt(folder), above) + 1
    try:
        make_lock(folder, number)
    except FileExistsError:
        return None
    others = [other for other in numbers(folder, number) if other not in (before, number)]
    if last_attempt(folder) >= number or any(other > before for other in others):
        # Somebody has come since that lock was looked at, and may have left again.
        lock_path(folder, number).unlink(missing_ok=True)
        return None
    if before:
        _fence_off(folder, number, holder)
    return number


def _is_free(folder: Path, number: int, holder: Process | None, lease: float) -> bool:
    """Whether a lock's holder is gone. Watches one that may live, as long as its lease is. False: look again."""
    path, me = lock_path(folder, number), this_process()
    first: float | None = None
    started = time.monotonic()
    with FileSystemClock(folder) as clock:
        while True:
            beat = beat_of(path)
            if beat is None:
                return False
            silent = clock.now() - beat
            holder = holder or holder_in(path)  # on some drives what was written is there a moment later
            claim = judge(holder, me, lives=holder is not None and lives(holder), silent=silent, lease=lease)
            if claim in (Claim.GONE, Claim.OWN):
                return True
            if claim is Claim.HELD or (first is not None and beat != first):
                age = f"last sign of life {max(0.0, silent):.0f} s ago"
                raise RunInUseError(
                    f"{folder} is in use by {_describe(holder)}, {age}. Two jobs must not write to one run: end that "
                    'one, or give this one another run name or save_dir. (To read only: period_steps = "disable")'
                )
            if first is None:
                first = beat
                logger.info("%s: waiting up to %.0f s for a sign of life of %s", folder, lease, _describe(holder))
            if time.monotonic() - started > 2 * lease + 10:
                raise RunInUseError(f"{folder}: the age of {path} cannot be told; remove it if no job runs there")
            time.sleep(min(1.0, lease / 10))


def _fence_off(folder: Path, number: int, holder: Process | None) -> None:
    """Take away what one that is gone could still commit, should it wake up: it renames the folder of its save."""
    found = survey(folder)
    for name in found.leftovers:
        attempt = layout.attempt_of(name)
        if attempt is None or attempt >= number or layout.is_doomed(name):
            continue
        logger.warning("ignored %s: a save that did not end", folder / name)
        doomed = folder / name.replace(".tmp-", ".del-")
        with contextlib.suppress(FileNotFoundError):
            remove_tree(doomed)
            (folder / name).rename(doomed)
    for other in numbers(folder):
        if other < number:
            lock_path(folder, other).unlink(missing_ok=True)
    sweep(folder, lock_path(folder, number))
    logger.info("%s was held by %s, which is gone", folder, _describe(holder))


def _next_number(folder: Path, known: int) -> int:
    return max(last_attempt(folder), *numbers(folder, known), known) + 1


def _key(folder: Path) -> str:
    return os.path.realpath(folder)


def _describe(holder: Process | None) -> str:
    return "a process that cannot be told" if holder is None else f"process {holder.pid} on {holder.host}"
