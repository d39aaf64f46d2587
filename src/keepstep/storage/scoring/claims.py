"""One watcher at a time scores a checkpoint on a set: claims in `.keepstep/scoring`, which end with their holder.

A claim is a file `<key>.<number>` that is made in one step; the highest number holds. A holder that the kernel knows to
be dead is replaced at once, one on another machine when it has not touched its claim for a while. Whoever takes over
gets the next number, so the number tells how many have died at it.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from keepstep.plan import layout
from keepstep.plan.lock import BEAT_SECONDS, LEASE_SECONDS, Claim, Process, judge
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.json_file import read_json
from keepstep.storage.local import make_folders
from keepstep.storage.lock_files import FileSystemClock, beat_of, holder_in, write_new
from keepstep.storage.process import lives, this_process

FOLDER = f"{layout.KEEPSTEP_FOLDER}/scoring"
_NAME = re.compile(r"([0-9a-f]+)\.([1-9][0-9]{0,9})", re.ASCII)
_NO_LINKS_SCRATCH = ".new-"


class HeldClaim:
    """A claim of this process, kept alive until `release`.

    Attributes:
        deaths: how many holders before this one died at it.
    """

    def __init__(self, folder: Path, key: str, number: int, token: str, beat: float) -> None:
        self._folder, self._key, self._token = folder, key, token
        self._path = _path(folder, key, number)
        self._number, self.deaths = number, number - 1
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, args=(beat,), name="keepstep-claim", daemon=True)
        self._thread.start()

    @property
    def is_held(self) -> bool:
        """Whether nobody has taken it over: this process may have been suspended for long."""
        try:
            newest = max(_numbers(self._folder, self._key), default=0)
        except FileNotFoundError:  # the folder was moved
            return False
        # Numbers begin anew when a claim is given up, so the same one may be of another holder.
        return newest == self._number and _token_in(self._path) == self._token

    def release(self) -> None:
        """Give it up. Raises OSError."""
        self._over.set()
        self._thread.join()
        if _token_in(self._path) == self._token:
            self._path.unlink(missing_ok=True)

    def _keep_alive(self, beat: float) -> None:
        while not self._over.wait(beat):
            with contextlib.suppress(OSError):
                if _token_in(self._path) == self._token:
                    os.utime(self._path)


@contextlib.contextmanager
def claimed(
    folder: Path, key: tuple[str, str], *, beat: float = BEAT_SECONDS, lease: float = LEASE_SECONDS
) -> Iterator[HeldClaim | None]:
    """Have a checkpoint and set to oneself for the duration of the body.

    Args:
        folder: that all who score share.
        key: the checkpoint's digest, and the set.
        beat: seconds between signs of life.
        lease: seconds without one after which a holder on another machine is taken for gone.

    Yields:
        The claim; None where another one has it, or may.

    Raises:
        OSError: the folder cannot be written.
    """
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "it is gone: was it moved?", str(folder))
    make_folders(folder / FOLDER)
    name = digest_of_bytes("\0".join(key).encode())
    token = secrets.token_hex(8)
    number = _take(folder, name, lease, token)
    if number is None:
        yield None
        return
    claim = HeldClaim(folder, name, number, token, beat)
    try:
        yield claim
    finally:
        claim.release()


def _take(folder: Path, key: str, lease: float, token: str) -> int | None:
    before = max(_numbers(folder, key), default=0)
    holder, theirs = None, ""
    if before:
        path = _path(folder, key, before)
        holder, theirs = holder_in(path), _token_in(path)
        if not _is_gone(folder, path, holder, lease):
            return None
    number = before + 1
    try:
        _make(_path(folder, key, number), token)
    except FileExistsError:
        return None
    others = set(_numbers(folder, key)) - {number}
    if others - {before} or (before in others and _token_in(_path(folder, key, before)) != theirs):
        # Somebody has come since that claim was looked at.
        _path(folder, key, number).unlink(missing_ok=True)
        return None
    if before:
        _path(folder, key, before).unlink(missing_ok=True)
    return number


def _is_gone(folder: Path, path: Path, holder: Process | None, lease: float) -> bool:
    beat = beat_of(path)
    if beat is None:
        return False  # released just now: the next look finds what came of it
    with FileSystemClock(folder) as clock:
        silent = clock.now() - beat
    return judge(holder, this_process(), lives=holder is not None and lives(holder), silent=silent, lease=lease) is (
        Claim.GONE
    )


def _make(path: Path, token: str) -> None:
    scratch = path.with_name(f"{_NO_LINKS_SCRATCH}{secrets.token_hex(8)}")
    write_new(path, scratch, json.dumps({**asdict(this_process()), "token": token}))


def _token_in(path: Path) -> str:
    """What tells a claim from all others; empty where it is gone or cannot be read."""
    return str(read_json(path).get("token", ""))


def _numbers(folder: Path, key: str) -> list[int]:
    matches = (_NAME.fullmatch(name) for name in os.listdir(folder / FOLDER))
    return [int(match[2]) for match in matches if match and match[1] == key]


def _path(folder: Path, key: str, number: int) -> Path:
    return folder / FOLDER / f"{key}.{number}"
