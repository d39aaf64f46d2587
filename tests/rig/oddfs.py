"""A FUSE file system that passes everything through to a folder, with manners that mounted drives have.

It runs in a process of its own (`python -m tests.rig.oddfs`), as a process that serves its own mount waits for itself.
"""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_SECONDS = 20.0
_NOW, _OMIT = 0x3FFFFFFF, 0x3FFFFFFE


@dataclass(frozen=True)
class Manners:
    """What is odd about it; by default nothing.

    Attributes:
        direct: O_DIRECT works; else a file is made, and opening it fails with EINVAL, as some file systems do.
        links, exchange: hard links, and renameat2 with an exchange, work.
        folder_sync: a folder can be synced; else EINVAL.
        folder_rename: a folder that is not empty can be renamed; else EXDEV.
        rename_seconds: what each rename takes.
        rename_copies: a folder's rename is no step: it is made anew, and its files come one by one, so long each.
        late_content: until so long after its last close a written file has no bytes for a reader, its writer too.
        late_names: so long is a listing kept, whatever has come or gone since; a name that is asked for is found.
        skew: seconds that its clock is ahead.
    """

    direct: bool = True
    links: bool = True
    exchange: bool = True
    folder_sync: bool = True
    folder_rename: bool = True
    rename_seconds: float = 0.0
    rename_copies: float = 0.0
    late_content: float | None = None
    late_names: float = 0.0
    skew: float = 0.0


def why_not() -> str:
    """Why such a file system cannot be mounted here; empty when it can."""
    try:
        import mfusepy  # noqa: F401
    except ImportError:
        return "mfusepy is not installed"
    except OSError:
        return "libfuse is not installed (Debian: apt-get install fuse3)"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened"
    return "" if shutil.which("fusermount3") else "fusermount3 is not installed (Debian: apt-get install fuse3)"


@contextmanager
def mounted(work: Path, manners: Manners) -> Iterator[Path]:
    """Mount it at `<work>/drive` over `<work>/server` for the length of the block.

    Args:
        work: an empty folder.
        manners: what is odd about it.
    """
    drive, server, log = work / "drive", work / "server", work / "log"
    drive.mkdir(parents=True)
    server.mkdir()
    command = [sys.executable, "-m", "tests.rig.oddfs", str(server), str(drive), json.dumps(asdict(manners))]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    with log.open("wb") as output:
        daemon = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + _SECONDS
        while not drive.is_mount():
            assert daemon.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "it was not mounted in time"
            time.sleep(0.005)
        yield drive
    finally:
        subprocess.run(["fusermount3", "-u", "-z", str(drive)], check=False, capture_output=True, timeout=_SECONDS)
        with suppress(subprocess.TimeoutExpired):
            daemon.wait(timeout=5)
        daemon.kill()
        daemon.wait(timeout=_SECONDS)


def _entry(entry: "os.DirEntry[str]") -> tuple[str, dict[str, int], int]:
    """As mfusepy wants it; what has no inode is left out of a listing by the C library."""
    mode = stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG
    return entry.name, {"st_mode": mode, "st_ino": entry.inode()}, 0


def _serve(server: str, drive: str, manners: Manners) -> None:
    """Mount and serve until it is unmounted."""
    import mfusepy

    from keepstep.storage.local import exchange

    def fail(code: int) -> OSError:
        return OSError(code, os.strerror(code))

    class Served(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def __init__(self) -> None:
            self._guard = threading.Lock()
            self._closed: dict[int, float] = {}  # by inode: when a written file was closed last; inf while it is open
            self._listings: dict[str, tuple[float, list[str]]] = {}

        def _real(self, path: str) -> str:
            return server + path

        # Names.

        def getattr(self, path: str, handle: Any = None) -> dict[str, Any]:
            found = os.lstat(self._real(path))
            told = {
                key: getattr(found, key) for key in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_ino", "st_blocks")
            }
            skew = int(manners.skew * 1e9)
            for name in ("st_atime", "st_mtime", "st_ctime"):
                told[name] = getattr(found, f"{name}_ns") + skew
            is_file = stat.S_ISREG(found.st_mode)
            return {**told, "st_size": 0 if is_file and self._is_late(found.st_ino) else found.st_size}

        def readdir(self, path: str, handle: int) -> list[Any]:
            with self._guard:
                at, entries = self._listings.get(path, (0.0, []))
                if time.monotonic() - at >= manners.late_names:
                    at, entries = time.monotonic(), [_entry(entry) for entry in os.scandir(self._real(path))]
                    self._listings[path] = (at, entries)
            return [".", "..", *entries]

        def mkdir(self, path: str, mode: int) -> None:
            os.mkdir(self._real(path), mode)

        def rmdir(self, path: str) -> None:
            os.rmdir(self._real(path))

        def unlink(self, path: str) -> None:
            os.unlink(self._real(path))

        def symlink(self, target: str, source: str) -> None:
            os.symlink(source, self._real(target))

        def readlink(self, path: str) -> str:
            return os.readlink(self._real(path))

        def link(self, target: str, source: str) -> None:
            if not manners.links:
                raise fail(errno.EPERM)
            os.link(self._real(source), self._real(target))

        def move(self, old: str, new: str, flags: int) -> None:
            first, second = self._real(old), self._real(new)
            if flags:
                if flags != 2 or not manners.exchange or not exchange(Path(first), Path(second)):
                    raise fail(errno.EINVAL)
                return
            is_filled = os.path.isdir(first) and not os.path.islink(first) and bool(os.listdir(first))
            if is_filled and not manners.folder_rename:
                raise fail(errno.EXDEV)
            time.sleep(manners.rename_seconds)
            if is_filled and manners.rename_copies:
                os.mkdir(second)
                for name in sorted(os.listdir(first)):
                    time.sleep(manners.rename_copies)
                    os.rename(f"{first}/{name}", f"{second}/{name}")
                os.rmdir(first)
            else:
                os.rename(first, second)

        def chmod(self, path: str, mode: int) -> None:
            os.chmod(self._real(path), mode)

        def chown(self, path: str, uid: int, gid: int) -> None:
            os.lchown(self._real(path), uid, gid)

        def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
            now, skew = time.time_ns(), int(manners.skew * 1e9)
            found = os.lstat(self._real(path))
            old = (found.st_atime_ns, found.st_mtime_ns)
            wished = times or (_NOW, _NOW)
            new = [now if t == _NOW else old[i] if t == _OMIT else t - skew for i, t in enumerate(wished)]
            os.utime(self._real(path), ns=(new[0], new[1]))

        def statfs(self, path: str) -> dict[str, Any]:
            found = os.statvfs(self._real(path))
            return {key: getattr(found, key) for key in dir(found) if key.startswith("f_")}

        def fsyncdir(self, path: str, datasync: int, handle: int) -> None:
            if not manners.folder_sync:
                raise fail(errno.EINVAL)

        # Content.

        def create(self, path: str, mode: int, info: Any) -> int:
            handle = os.open(self._real(path), info.flags & ~os.O_DIRECT | os.O_CREAT, mode)
            return self._opened(handle, info)

        def open(self, path: str, info: Any) -> int:
            return self._opened(os.open(self._real(path), info.flags & ~(os.O_DIRECT | os.O_CREAT | os.O_EXCL)), info)

        def _opened(self, handle: int, info: Any) -> int:
            if info.flags & os.O_DIRECT and not manners.direct:
                os.close(handle)
                raise fail(errno.EINVAL)
            info.fh = handle
            if manners.late_content is not None:
                info.direct_io = 1  # the kernel must not answer from its cache
            return 0

        def read(self, path: str, size: int, offset: int, info: Any) -> bytes:
            if self._is_late(os.fstat(info.fh).st_ino):
                return b""
            return os.pread(info.fh, size, offset)

        def write(self, path: str, data: bytes, offset: int, info: Any) -> int:
            if manners.late_content is not None:
                self._closed[os.fstat(info.fh).st_ino] = float("inf")
            return os.pwrite(info.fh, data, offset)

        def truncate(self, path: str, length: int, info: Any = None) -> None:
            os.truncate(self._real(path), length)

        def fsync(self, path: str, datasync: int, info: Any) -> None:
            os.fsync(info.fh)

        def release(self, path: str, info: Any) -> None:
            inode = os.fstat(info.fh).st_ino
            if self._closed.get(inode) == float("inf"):
                self._closed[inode] = time.monotonic()
            os.close(info.fh)

        def _is_late(self, inode: int) -> bool:
            if manners.late_content is None:
                return False
            return time.monotonic() < self._closed.get(inode, 0.0) + manners.late_content

    class Fuse(mfusepy.FUSE):  # type: ignore[misc]
        def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> None:
            self.operations.move(os.fsdecode(old), os.fsdecode(new), flags)

    # `rename` must be there for libfuse to be told of it.
    Served.rename = Served.move
    Fuse(
        Served(),
        drive,
        raw_fi=True,
        foreground=True,
        fsname="server:/odd",
        subtype="odd",
        entry_timeout=0,
        attr_timeout=0,
        negative_timeout=0,
        use_ino=True,
        hard_remove=True,
    )


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], Manners(**json.loads(sys.argv[3])))
