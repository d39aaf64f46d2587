"""Object stores: S3, Google Cloud Storage, Azure. There is no rename here, so what is uploaded last is the commit."""

import errno
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError

from keepstep.storage.digest import BLOCK_SIZE, block_digests, digest_of_blocks
from keepstep.storage.parallel import run_on
from keepstep.storage.stores.base import StoredObject, Upload
from keepstep.storage.stores.meter import Meter
from keepstep.storage.stores.pieces import PIECE, Pieces

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# Requests that are under way at once.
_FILES = 4
_PARTS = 8
_PAGE = 1000
_READ_BACK = 512 * BLOCK_SIZE
_DELETED_AT_ONCE = 1000
# Queries hold signatures.
_QUERY = re.compile(r"\?[\w.~%-]+=[^\s\"'<>)]*")
_LONGEST_TEXT = 500

RETRIES: dict[str, Any] = {
    "max_retries": 6,
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=10), "base": 2},
    "retry_timeout": timedelta(seconds=60),
}
CLIENT: dict[str, Any] = {"timeout": timedelta(seconds=120), "connect_timeout": timedelta(seconds=10)}


class ObjectsStore:
    """A prefix of a bucket.

    Args:
        store: obstore's, whose prefix is the address.
        address: for people.
        tags_are_md5: the store calls an object by the MD5 of its parts, as S3 does.
    """

    def __init__(self, store: "ObjectStore", address: str, *, tags_are_md5: bool = False) -> None:
        self._store, self._address, self._tags_are_md5 = store, address, tags_are_md5

    @property
    def address(self) -> str:
        return self._address

    def list(self, prefix: str = "") -> list[StoredObject]:
        with self._asking(f"list {self._of(prefix)}"):
            found = [
                StoredObject(
                    one["path"], one["size"], one["last_modified"].timestamp(), (one["e_tag"] or "").strip('"')
                )
                for page in obstore.list(self._store, prefix or None, chunk_size=_PAGE)
                for one in page
            ]
        return sorted(found, key=lambda one: one.name)

    def read(self, name: str, limit: int) -> bytes:
        with self._asking(f"read {self._of(name)}"):
            result = obstore.get(self._store, name)
            if result.meta["size"] > limit:
                raise OSError(errno.EFBIG, f"it has {result.meta['size']} bytes; {limit} is the most", self._of(name))
            return bytes(result.bytes())

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        if not target:
            return
        with self._asking(f"read {self._of(name)}"):
            data = obstore.get_range(self._store, name, start=offset, length=len(target))
        if len(data) != len(target):
            raise EOFError(f"it ends at byte {offset + len(data)}")
        target[:] = memoryview(data)

    def put(
        self, uploads: Sequence[Upload], last: Upload, meter: Meter, confirm: Callable[[], None] = lambda: None
    ) -> None:
        # The largest first: the others fill the gaps beside it.
        ordered = sorted(uploads, key=lambda one: -one.size)
        left = {one.name: one for folder in _folders(uploads) for one in self.list(folder)}
        run_on(min(_FILES, len(ordered)), iter(ordered), lambda one: self._put(one, left.get(one.name), meter))
        confirm()
        self._put(last, None, meter)

    def write(self, name: str, data: bytes) -> None:
        with self._asking(f"write {self._of(name)}"):
            obstore.put(self._store, name, data, use_multipart=False)

    def create(self, name: str, data: bytes) -> bool:
        try:
            with self._asking(f"write {self._of(name)}"):
                obstore.put(self._store, name, data, mode="create")
        except FileExistsError:
            return False
        return True

    def remove(self, prefix: str, first: str) -> None:
        head = f"{prefix}/{first}"
        names = [one.name for one in self.list(prefix)]
        with self._asking(f"delete {self._of(prefix)}"):
            if head in names:
                obstore.delete(self._store, head)
                names.remove(head)
            for begin in range(0, len(names), _DELETED_AT_ONCE):
                obstore.delete(self._store, names[begin : begin + _DELETED_AT_ONCE])

    def _put(self, upload: Upload, left: StoredObject | None, meter: Meter) -> None:
        if left is not None and left.size == upload.size and self._is_same(upload, left):
            return
        pieces = Pieces(upload, meter)
        with self._asking(f"upload {self._of(upload.name)}"):
            if upload.size <= PIECE:
                data = b"".join(pieces)
                result = obstore.put(self._store, upload.name, data, use_multipart=False)
                tag = pieces.e_tag_of_one()
            else:
                result = obstore.put(
                    self._store, upload.name, pieces, use_multipart=True, chunk_size=PIECE, max_concurrency=_PARTS
                )
                tag = pieces.e_tag()
        if self._tags_are_md5 and (result["e_tag"] or "").strip('"') == tag:
            return
        # A store that tells no MD5 (or encrypts with keys of its own) is asked for the bytes.
        if not self._reads_back(upload):
            raise OSError(errno.EIO, "what is stored is not what was sent", self._of(upload.name))

    def _is_same(self, upload: Upload, left: StoredObject) -> bool:
        """Whether an object of the right size, which somebody has left there, is what is to be sent."""
        if not self._tags_are_md5:
            return self._reads_back(upload)
        pieces = Pieces(upload, Meter())
        for _ in pieces:
            pass
        return left.tag == (pieces.e_tag_of_one() if upload.size <= PIECE else pieces.e_tag())

    def _reads_back(self, upload: Upload) -> bool:
        digests = []
        for begin in range(0, upload.size, _READ_BACK):
            buffer = memoryview(bytearray(min(_READ_BACK, upload.size - begin)))
            self.read_into(upload.name, begin, buffer)
            digests.append(block_digests(buffer))
        return digest_of_blocks(b"".join(digests)) == upload.digest

    def _of(self, name: str) -> str:
        return f"{self._address}/{name}" if name else self._address

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Turn the library's errors into built-in ones. Not even their chain is kept: its texts hold whole queries."""
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, f"cannot {what}: there is no such object") from None
        except AlreadyExistsError:
            raise FileExistsError(errno.EEXIST, f"cannot {what}: it is there already") from None
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise PermissionError(errno.EACCES, f"cannot {what}: {safe_text(error)}") from None
        except BaseError as error:
            raise OSError(errno.EIO, f"cannot {what}: {safe_text(error)}{_hint(str(error))}") from None


def _hint(text: str) -> str:
    """Without credentials the client asks the machine for some, and tells of that."""
    if any(one in text for one in ("169.254.169.254", "metadata.google", "instance metadata")):
        return " (no credentials were found in the environment; docs/mirrors.md says where each kind looks)"
    if "BadScheme" in text or "URL scheme is not allowed" in text:
        return " (an endpoint without TLS needs AWS_ALLOW_HTTP=true)"
    return ""


def _folders(uploads: Sequence[Upload]) -> set[str]:
    """The folders that hold these names, none inside another."""
    found = {one.name.rpartition("/")[0] for one in uploads}
    return {one for one in found if not any(one.startswith(f"{other}/") for other in found)}


def safe_text(error: Exception) -> str:
    """The text of an error in one line, without queries of addresses: they may hold signatures and tokens."""
    text = " ".join(_QUERY.sub("?...", str(error)).split())
    text = text.partition(" Debug source:")[0]
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."
