"""One job at a time in a run's folder: a lease that is kept alive, and numbers that fence off who has lost it.

The lock of a run is a file `.keepstep/lock-<number>`; the highest number holds. It is made in one step (a link to a
file that is complete), so of several that take over one wins, and it never comes to be that two have one number. Its
holder touches it every few seconds. Age is told by the clock of the file system alone: those of hosts differ.
"""

import contextlib
import errno
import json
import logging
import os
import re
import secrets
import threading
import time
from dataclasses import asdict
from pathlib import Path

from keepstep.errors import RunInUseError
from keepstep.plan import layout
from keepstep.plan.lock import BEAT_SECONDS, LEASE_SECONDS, Claim, Process, judge
from keepstep.storage.local import make_folders, remove_tree
from keepstep.storage.plain import read_plain
from keepstep.storage.process import lives, this_process
from keepstep.storage.survey import last_attempt, survey

logger = logging.getLogger("keepstep")

_LOCK = re.compile(r"lock-([1-9][0-9]{0,18})", re.ASCII)
_SCRATCH = "lock.new-"
_LONGEST = 4096
_STALE_SECONDS = 600.0
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


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
        return _path(self.folder, self.number)

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
        number, holder = _newest(self.folder)
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
        _make(self.folder, number)
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
            held._advance(max(_next_number(folder), above + 1))
            return held
    make_folders(folder / layout.KEEPSTEP_FOLDER)
    while True:
        number = _take(folder, lease, above)
        if number is None:
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
    number, holder = _newest(folder)
    if not number:
        return Claim.GONE, ""
    claim = judge(holder, this_process(), lives=holder is not None and lives(holder), silent=0.0)
    return claim, _describe(holder)


def _take(folder: Path, lease: float, above: int) -> int | None:
    """Try once. Returns the number, or None when somebody else was faster."""
    before, holder = _newest(folder)
    if before and not _is_free(folder, before, holder, lease):
        return None
    # Counted from the lock that was judged: several who judge the same one want the same number, and one gets it.
    number = max(before, last_attempt(folder), above) + 1
    try:
        _make(folder, number)
    except FileExistsError:
        return None
    others = [other for other in _numbers(folder) if other not in (before, number)]
    if last_attempt(folder) >= number or any(other > before for other in others):
        # Somebody has come since that lock was looked at, and may have left again.
        _path(folder, number).unlink(missing_ok=True)
        return None
    if before:
        _fence_off(folder, number, holder)
    return number


def _is_free(folder: Path, number: int, holder: Process | None, lease: float) -> bool:
    """Whether a lock's holder is gone. Watches one that may live, as long as its lease is. False: look again."""
    path, me = _path(folder, number), this_process()
    first: float | None = None
    started = time.monotonic()
    with _Clock(folder) as clock:
        while True:
            beat = _beat_of(path)
            if beat is None:
                return False
            silent = clock.now() - beat
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
    for other in _numbers(folder):
        if other < number:
            _path(folder, other).unlink(missing_ok=True)
    _sweep(folder, _path(folder, number))
    logger.info("%s was held by %s, which is gone", folder, _describe(holder))


def _sweep(folder: Path, lock: Path) -> None:
    """Take away what processes have left that were killed while they made a lock, or watched one."""
    now = lock.stat().st_mtime
    for path in (folder / layout.KEEPSTEP_FOLDER).glob(f"{_SCRATCH}*"):
        with contextlib.suppress(FileNotFoundError):
            if now - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()


def _make(folder: Path, number: int) -> None:
    """Make a lock file, whole, in one step. Raises FileExistsError when somebody has made it."""
    target = _path(folder, number)
    text = json.dumps({**asdict(this_process()), "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
    scratch = target.with_name(f"{_SCRATCH}{secrets.token_hex(8)}")
    try:
        _write_new(scratch, text)
        os.link(scratch, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _write_new(target, text)
    finally:
        scratch.unlink(missing_ok=True)


def _write_new(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, f"{text}\n".encode())
        # A lock that a power cut has emptied could not be told from a stranger's, and would be waited for.
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Clock:
    """The clock of the file system that a folder lies on."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / layout.KEEPSTEP_FOLDER / f"{_SCRATCH}{secrets.token_hex(8)}"

    def now(self) -> float:
        self._path.write_bytes(b".")
        return self._path.stat().st_mtime

    def __enter__(self) -> "_Clock":
        return self

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)


def _beat_of(path: Path) -> float | None:
    """When a lock was touched last; None when it is gone. Opened, since network file systems cache what `stat` says."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)


def _newest(folder: Path) -> tuple[int, Process | None]:
    """The highest lock's number (0: there is none) and holder (None: it cannot be read)."""
    number = max(_numbers(folder), default=0)
    if not number:
        return 0, None
    try:
        text = json.loads(read_plain(_path(folder, number), _LONGEST))
        fields = {name: text[name] for name in ("host", "pid", "boot", "namespace", "started")}
        return number, Process(**fields)
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return number, None


def _next_number(folder: Path) -> int:
    return max(last_attempt(folder), *_numbers(folder), 0) + 1


def _numbers(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder / layout.KEEPSTEP_FOLDER)
    except FileNotFoundError:
        return []
    return [int(match[1]) for name in names if (match := _LOCK.fullmatch(name))]


def _path(folder: Path, number: int) -> Path:
    return folder / layout.KEEPSTEP_FOLDER / f"lock-{number}"


def _key(folder: Path) -> str:
    return os.path.realpath(folder)


def _describe(holder: Process | None) -> str:
    return "a process that cannot be told" if holder is None else f"process {holder.pid} on {holder.host}"
