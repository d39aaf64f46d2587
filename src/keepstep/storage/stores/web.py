"""Files of a web server, for reading: what can be shared by an address alone, presigned ones included."""

import errno
import http.client
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from typing import IO, Any, TypeVar

from keepstep.config.address import Address
from keepstep.storage.stores.base import StoredObject, Upload
from keepstep.storage.stores.meter import Meter

T = TypeVar("T")

_TIMEOUT_SECONDS = 60.0
_RETRY_SECONDS = 30.0
_FIRST_PAUSE = 0.2
_BUSY = (408, 425, 429)
_REFUSED = (401, 403, 407)
_ABSENT = (404, 410)
_RANGE = re.compile(r"bytes (\d+)-(\d+)/")
# As they stand in addresses; the rest is written with percent signs.
_PLAIN = "/%:@!$&'()*+,;=~"
_WHOLE = 1024 * 1024


class WebStore:
    """What lies below an address of a web server. It cannot be listed or written.

    Args:
        address: the query of it goes with every file, and into no text.
        retry_seconds: how long a server that is busy or gone is asked again.
    """

    def __init__(self, address: Address, *, retry_seconds: float = _RETRY_SECONDS) -> None:
        self._place, self._retry_seconds = address, retry_seconds
        self._opener = urllib.request.build_opener(_SameScheme())

    @property
    def address(self) -> str:
        return str(self._place)

    def list(self, prefix: str = "") -> list[StoredObject]:
        text = (
            f"cannot list {self._place.joined(prefix)}: a web server tells no names; give the address of a checkpoint"
        )
        raise OSError(errno.ENOTSUP, text)

    def read(self, name: str, limit: int) -> bytes:
        def take(answer: http.client.HTTPResponse) -> bytes:
            data = answer.read(limit + 1)
            if len(data) > limit:
                text = f"it has more than {limit} bytes"
                raise _FinalError(OSError(errno.EFBIG, text, str(self._place.joined(name))))
            if answer.length:
                raise http.client.IncompleteRead(data, answer.length)
            return data

        return self._ask(name, {}, take)

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        if not target:
            return
        wanted = {"Range": f"bytes={offset}-{offset + len(target) - 1}"}

        def take(answer: http.client.HTTPResponse) -> None:
            end = self._granted(answer, name, offset, len(target))
            done = 0
            while done < end and (count := answer.readinto(target[done:end])):
                done += count
            if done < end:
                raise http.client.IncompleteRead(b"", end - done)
            if end < len(target):
                raise _FinalError(EOFError(f"it ends at byte {offset + end}"))

        self._ask(name, wanted, take)

    def put(
        self, uploads: Sequence[Upload], last: Upload, meter: Meter, confirm: Callable[[], None] = lambda: None
    ) -> None:
        raise self._read_only()

    def write(self, name: str, data: bytes) -> None:
        raise self._read_only()

    def create(self, name: str, data: bytes) -> bool:
        raise self._read_only()

    def remove(self, prefix: str, first: str) -> None:
        raise self._read_only()

    def _read_only(self) -> OSError:
        return OSError(errno.EROFS, f"{self._place} can only be read")

    def _granted(self, answer: http.client.HTTPResponse, name: str, offset: int, length: int) -> int:
        """How many of the bytes that were asked for come, from the first of them on."""
        if answer.status == 206:
            found = _RANGE.match(answer.headers.get("Content-Range", ""))
            if found is not None and int(found[1]) == offset:
                return min(length, int(found[2]) - offset + 1)
        elif not offset and answer.length is not None and answer.length <= max(length, _WHOLE):
            return min(length, answer.length)  # the whole of a small file is as good
        text = "the server gives no parts of files; copy the checkpoint to a folder by other means"
        raise _FinalError(OSError(errno.ENOTSUP, text, str(self._place.joined(name))))

    def _ask(self, name: str, headers: dict[str, str], take: Callable[[http.client.HTTPResponse], T]) -> T:
        """Ask for a file, again where the server is busy or the connection breaks. No text of the client's own is
        shown: it may hold the query."""
        where = str(self._place.joined(name))
        request = urllib.request.Request(self._url(name), headers=headers)
        end, pause = time.monotonic() + self._retry_seconds, _FIRST_PAUSE
        while True:
            try:
                with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
                    return take(answer)
            except _FinalError as error:
                raise error.cause from None
            except urllib.error.HTTPError as error:
                error.close()
                problem = f"the server answers {error.code}"
                if error.code in _ABSENT:
                    raise FileNotFoundError(errno.ENOENT, f"cannot read {where}: there is no such file") from None
                if error.code == 416:
                    raise EOFError(f"it ends before {headers.get('Range', 'its begin')}") from None
                if error.code in _REFUSED:
                    text = f"cannot read {where}: {problem}; a presigned address may have run out"
                    raise PermissionError(errno.EACCES, text) from None
                if error.code < 500 and error.code not in _BUSY:
                    raise OSError(errno.EIO, f"cannot read {where}: {problem}") from None
            except (OSError, http.client.HTTPException) as error:
                problem = _short(error)
            if time.monotonic() + pause > end:
                raise OSError(errno.EIO, f"cannot read {where}: {problem}") from None
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _url(self, name: str) -> str:
        place = self._place
        parts = [place.path, name] if place.path and name else [place.path or name]
        quoted = urllib.parse.quote("/".join(parts[:1]), safe=_PLAIN)
        if len(parts) > 1:
            quoted += "/" + urllib.parse.quote(parts[1])
        return f"{place.scheme}://{place.place}/{quoted}" + (f"?{place.query}" if place.query else "")


class _FinalError(Exception):
    """An error that asking again does not mend."""

    def __init__(self, cause: OSError | EOFError) -> None:
        super().__init__()
        self.cause = cause


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Follows a server elsewhere, but from https to http or to a file never."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if urllib.parse.urlsplit(newurl).scheme != req.type:
            return None  # the answer then counts as an error
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _short(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return "the server does not answer in time"
    if isinstance(reason, OSError):
        return reason.strerror or type(reason).__name__
    return "the connection broke off" if isinstance(reason, http.client.HTTPException) else "the connection failed"
