"""Files and folders of a local or shared file system, written so that a crash cannot take them back."""

import contextlib
import ctypes
import errno
import os
import shutil
import time
from pathlib import Path
from types import TracebackType

from keepstep.storage.digest import BlockDigester

_RETRY_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0)
_WRITE_SIZE = 8 * 1024 * 1024
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

# What a rename of a folder answers where a file system has none, or only for empty ones.
_NO_RENAMES = (errno.EXDEV, errno.ENOTSUP, errno.ENOSYS)
# What `os.link` answers where a file system has no links.
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class DurableFile:
    """A new file that is written front to back, digested on the way, and on disk when `close` returns.

    Raises FileExistsError when the name is taken: two writers never share a file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.digests = b""
        self._digester = BlockDigester()
        self._pending = bytearray()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes. Returns the offset at which they begin."""
        offset = self.size
        self._digester.update(data)
        self.size += len(data)
        if len(data) >= _WRITE_SIZE:
            self._flush()
            self._write_out(memoryview(data))
        else:
            self._pending += data
            if len(self._pending) >= _WRITE_SIZE:
                self._flush()
        return offset

    def close(self) -> None:
        """Write what is pending and sync the file. Its name is durable only after `sync_folder` of its folder."""
        self._flush()
        self.digests = self._digester.finish()
        os.fsync(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1

    def _flush(self) -> None:
        self._write_out(memoryview(self._pending))
        self._pending = bytearray()

    def _write_out(self, view: memoryview) -> None:
        while view:
            view = view[os.write(self._descriptor, view) :]

    def __enter__(self) -> "DurableFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._descriptor >= 0:
            os.close(self._descriptor)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE file systems take no sync of a folder; their renames are synchronous.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def make_folders(path: Path) -> None:
    """Create a folder and its missing parents, durably."""
    missing = []
    place = path
    while not place.is_dir():
        missing.append(place)
        place = place.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another job may make the same parent
            folder.mkdir()
        sync_folder(folder.parent)
    # One that is there may have been made by a process that died before it could sync the name.
    for folder in (path.parent, path.parent.parent):
        with contextlib.suppress(PermissionError):
            sync_folder(folder)


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new one."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    scratch.unlink(missing_ok=True)
    try:
        with DurableFile(scratch) as file:
            file.write(text.encode())
        scratch.rename(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(path.parent)


def create_text(path: Path, text: str) -> None:
    """Write a file that nobody may have written before; a reader sees it whole, or not at all.

    Raises:
        FileExistsError: it is there.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    scratch.unlink(missing_ok=True)
    try:
        with DurableFile(scratch) as file:
            file.write(text.encode())
        try:
            os.link(scratch, path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            # Without links a crash may leave it torn; such a note is passed over, and its name is not used again.
            with path.open("x") as plain:
                plain.write(text)
                plain.flush()
                os.fsync(plain.fileno())
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(path.parent)


def publish(source: Path, target: Path) -> None:
    """Rename a finished folder to its final, free name and make that durable.

    Raises:
        OSError: it failed; the folder has its old name.
    """
    try:
        source.rename(target)
    except OSError as error:
        if error.errno not in _NO_RENAMES:
            raise
        problem = (
            f"this file system cannot rename a folder that is not empty ({error.strerror}), and a rename commits each "
            "save. Save to another folder: `keepstep doctor FOLDER` says whether one is fit"
        )
        raise OSError(error.errno, problem, str(source), None, str(target)) from error
    try:
        sync_folder(target.parent)
    except OSError:
        # A name that a power cut may take back must not stand: older ones would be deleted for it.
        target.rename(source)
        raise


def free_bytes(folder: Path) -> int | None:
    """What this user may still write to the file system of a folder; None where it does not say."""
    found = os.statvfs(folder)
    if not found.f_blocks:
        return None
    return found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)


def exchange(first: Path, second: Path) -> bool:
    """Let two folders change names in one step, so that at every moment one whole folder has each name.

    Returns:
        False, and nothing is changed, where system or file system cannot do that (it is a call of Linux).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(second))


def remove_tree(path: Path) -> None:
    """Delete a folder and all in it, or a file or link; what is gone already is fine.

    A mounted drive may keep a listing for seconds: it names what is gone, and lacks what has come. So it tries again.

    Raises:
        OSError: it cannot be deleted.
    """
    for pause in (*_RETRY_SECONDS, None):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
            return
        except OSError as error:
            if not os.path.lexists(path):
                return
            if pause is None or error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise
            time.sleep(pause)
