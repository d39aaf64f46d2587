"""A folder as a store: a mounted drive or bucket, a network file system. Names appear one by one, the last one last."""

import errno
import glob
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from keepstep.storage.digest import BLOCK_SIZE, block_digests, digest_of_blocks
from keepstep.storage.local import DurableFile, create_text, make_folders, remove_tree, sync_folder
from keepstep.storage.part import read_fully
from keepstep.storage.plain import NotPlainError, open_plain, read_plain
from keepstep.storage.reread import read_past_cache
from keepstep.storage.stores.base import StoredObject, Upload
from keepstep.storage.stores.meter import Meter
from keepstep.storage.stores.pieces import Pieces

_READ_BACK = 512 * BLOCK_SIZE
# Where drives are mounted by custom: an empty folder there has lost its drive.
_MOUNTED = ("/mnt/", "/media/", "/Volumes/", "/content/drive")


class FolderStore:
    """A folder of a file system. It is made when something is put into it; where it is missing, it is empty.

    Args:
        folder: absolute.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def address(self) -> str:
        return f"file://{self._folder}"

    def list(self, prefix: str = "") -> list[StoredObject]:
        found: list[StoredObject] = []
        top = self._folder / prefix
        self._look()
        if not os.path.lexists(top):
            return []

        def fail(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):  # something goes while we look
                raise error

        for path, _, names in os.walk(top, onerror=fail):
            for name in names:
                full = os.path.join(path, name)
                try:
                    status = os.lstat(full)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    relative = os.path.relpath(full, self._folder)
                    found.append(StoredObject(relative, status.st_size, status.st_mtime))
        return sorted(found, key=lambda one: one.name)

    def _look(self) -> None:
        """A folder that is not there is empty, but not where all above it is missing too: there a drive is."""
        above = self._folder.parent
        if not above.is_dir() or (not self._folder.exists() and _has_lost_its_drive(above)):
            raise FileNotFoundError(errno.ENOENT, "there is no such folder; is the drive mounted?", str(self._folder))
        if os.path.lexists(self._folder) and not self._folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is no folder", str(self._folder))

    def read(self, name: str, limit: int) -> bytes:
        try:
            return read_plain(self._folder / name, limit)
        except NotPlainError as error:
            raise OSError(errno.EFBIG, str(error), str(self._folder / name)) from error

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        try:
            descriptor = open_plain(self._folder / name)
        except NotPlainError as error:
            raise OSError(errno.EINVAL, str(error), str(self._folder / name)) from error
        try:
            read_fully(descriptor, offset, target)
        finally:
            os.close(descriptor)

    def put(
        self, uploads: Sequence[Upload], last: Upload, meter: Meter, confirm: Callable[[], None] = lambda: None
    ) -> None:
        for upload in uploads:
            self._put(upload, meter)
        for folder in sorted({(self._folder / one.name).parent for one in uploads}):
            sync_folder(folder)
        confirm()
        self._put(last, meter)
        sync_folder((self._folder / last.name).parent)

    def write(self, name: str, data: bytes) -> None:
        target = self._folder / name
        make_folders(target.parent)
        self._replace(target, data)

    def create(self, name: str, data: bytes) -> bool:
        target = self._folder / name
        make_folders(target.parent)
        try:
            create_text(target, data.decode())
        except FileExistsError:
            return False
        return True

    def remove(self, prefix: str, first: str) -> None:
        folder = self._folder / prefix
        (folder / first).unlink(missing_ok=True)
        if folder.is_dir():
            sync_folder(folder)
        remove_tree(folder)

    def _put(self, upload: Upload, meter: Meter) -> None:
        target = self._folder / upload.name
        make_folders(target.parent)
        if target.is_file() and target.stat().st_size == upload.size and _reads_back(upload, target):
            return
        scratch = _scratch(target)
        for left in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):  # by a process that was killed
            remove_tree(left)
        try:
            with DurableFile(scratch) as file:
                for piece in Pieces(upload, meter):
                    file.write(piece)
            scratch.rename(target)
        finally:
            scratch.unlink(missing_ok=True)
        if not _reads_back(upload, target):
            raise OSError(errno.EIO, "what is stored is not what was written", str(target))

    def _replace(self, target: Path, data: bytes) -> None:
        scratch = _scratch(target)
        remove_tree(scratch)
        try:
            with DurableFile(scratch) as file:
                file.write(data)
            scratch.rename(target)
        finally:
            scratch.unlink(missing_ok=True)
        sync_folder(target.parent)


def _has_lost_its_drive(folder: Path) -> bool:
    return f"{folder}/".startswith(_MOUNTED) and not os.path.ismount(folder) and not any(folder.iterdir())


def _reads_back(upload: Upload, target: Path) -> bool:
    digests = [
        block_digests(read_past_cache(target, begin, min(_READ_BACK, upload.size - begin)))
        for begin in range(0, upload.size, _READ_BACK)
    ]
    return digest_of_blocks(b"".join(digests)) == upload.digest


def _scratch(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")
