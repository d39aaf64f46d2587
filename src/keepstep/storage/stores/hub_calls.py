"""Asks the Hub through its own client: again where that may help, never for ever, and with built-in errors that hold
no token."""

import errno
import logging
import random
import re
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Seconds: the first pause and the longest, how long failures are borne, and how long a limit of requests is.
FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 10.0
PATIENCE = 60.0
_LIMIT_PATIENCE = 310.0
# Seconds in which nothing of an answer or of a file moves. The client itself waits out a limit of requests in them.
SILENCE = 360.0
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_REFUSED = (401, 403)
_MOVED_ON = (409, 412)
_TOKEN = re.compile(r"\bhf_[\w.-]{8,}")
_QUERY = re.compile(r"\?[^\s\"')]*")
_RESET = re.compile(r";\s*t\s*=\s*(\d+)")
_LONGEST_TEXT = 500
_THREAD = "keepstep-hub"
LOG_IN = "Log in with `hf auth login` or set HF_TOKEN"


class NoRepositoryError(FileNotFoundError):
    """There is no such repository, or the token cannot see it: the Hub answers both alike."""


class MovedOnError(OSError):
    """Somebody else has committed since the repository was looked at."""


class StoppedError(Exception):
    """The upload shall end. It is no OSError, so that no client tries again.

    Attributes:
        error: what the meter raised.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def token() -> str | None:
    """The token of the usual places: HF_TOKEN, or what `hf auth login` has left."""
    from huggingface_hub import get_token

    return get_token()


def ask(
    what: str, call: Callable[[], T], since: Callable[[], float] = lambda: 0.0, *, has_time_limit: bool = False
) -> T:
    """Call, and again after a pause where a server or the network failed.

    Args:
        what: for errors: "list hf://user/repo".
        call: uses the Hub's client.
        since: when something moved last, by `time.monotonic()`.
        has_time_limit: the call cannot hang, so it needs no thread of its own.

    Raises:
        NoRepositoryError, FileNotFoundError, PermissionError, MovedOnError, OSError: by the Hub's answer.
        TimeoutError: nothing moved for `SILENCE` seconds.
        what a meter raised.
    """
    end, pause, borne = time.monotonic() + PATIENCE, FIRST_PAUSE, 0.0
    while True:
        try:
            return call() if has_time_limit else _within(call, since)
        except _client_errors() as caught:
            error = _cause(caught)
            if isinstance(error, StoppedError):
                raise error.error from None
            if isinstance(error, TimeoutError) and error.errno == errno.ETIMEDOUT:
                raise TimeoutError(errno.ETIMEDOUT, f"cannot {what}: {error.strerror}") from None
            wait = _told_wait(error)
            if wait is None:
                wait = pause * random.uniform(0.5, 1.0)
                is_late = time.monotonic() + wait > end
            else:
                borne, end = borne + wait, end + wait
                is_late = borne > _LIMIT_PATIENCE
            if is_late or not _is_transient(error):
                # Not even the chain is kept: its texts may hold signatures and tokens.
                raise _translated(what, error) from None
        time.sleep(wait)
        pause = min(2 * pause, _LONGEST_PAUSE)


def safe_text(error: BaseException) -> str:
    """The text of an error in one line, without tokens and queries."""
    text = _TOKEN.sub("hf_...", _QUERY.sub("?...", " ".join(str(error).split())))
    secret = token()
    text = text.replace(secret, "...") if secret else text
    text = f"{type(error).__name__}: {text or 'no further word'}"
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."


def _within(call: Callable[[], T], since: Callable[[], float]) -> T:
    """Call on a thread that nobody has to wait for: the client sets no time limit for most of its requests."""
    results: list[T] = []
    errors: list[BaseException] = []
    is_over = threading.Event()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            errors.append(error)
        finally:
            is_over.set()

    _be_quiet()
    begun = time.monotonic()
    threading.Thread(target=run, name=_THREAD, daemon=True).start()
    while not is_over.wait(min(SILENCE, 5.0)):
        if time.monotonic() - max(begun, since()) > SILENCE:
            raise TimeoutError(errno.ETIMEDOUT, f"nothing has come for {SILENCE:.0f} s")
    if errors:
        raise errors[0]
    return results[0]


def _client_errors() -> tuple[type[BaseException], ...]:
    """What a call may raise: bad answers, bad connections, answers of something that is no Hub; and a meter's end."""
    builtin = (OSError, ValueError, RuntimeError, LookupError, TypeError, AssertionError, AttributeError)
    return (StoppedError, *builtin, _transport_error())


def _transport_error() -> type[BaseException]:
    # Which HTTP library it is differs between versions of the client.
    from huggingface_hub.errors import HfHubHTTPError

    base = HfHubHTTPError.__bases__[0]
    package = base.__module__.partition(".")[0]
    return [one for one in base.__mro__ if one.__module__.partition(".")[0] == package][-1]


def _cause(error: BaseException) -> BaseException:
    """Of an upload the client tells only that it failed, and what caused it in the chain."""
    while isinstance(error, RuntimeError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _is_transient(error: BaseException) -> bool:
    status = _status(error)
    if status is not None:
        return status in _TRANSIENT
    # After a connection error the client takes its one session away, also from threads that are just using it.
    is_sessionless = isinstance(error, AttributeError) and "NoneType" in str(error)
    return is_sessionless or isinstance(error, _transport_error())


def _told_wait(error: BaseException) -> float | None:
    """Seconds after which the Hub wants to be asked again."""
    if _status(error) not in (429, 503):
        return None
    headers = error.response.headers  # type: ignore[attr-defined]
    after = str(headers.get("Retry-After") or "").strip()
    if after.isdigit():
        return float(after)
    reset = _RESET.search(str(headers.get("RateLimit") or ""))
    return float(reset[1]) + 1 if reset and _status(error) == 429 else None


def _translated(what: str, error: BaseException) -> OSError:
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalTokenNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    status, text = _status(error), f"cannot {what}: {safe_text(error)}"
    # A 401 is never the answer to a good token: that nothing was found behind it means nothing.
    if isinstance(error, GatedRepoError | LocalTokenNotFoundError) or status in _REFUSED:
        return PermissionError(errno.EACCES, f"{text}. {LOG_IN}; the token needs rights for this repository")
    if isinstance(error, RepositoryNotFoundError):
        if token() is None:
            return PermissionError(errno.EACCES, f"cannot {what}: without a token nothing is seen there. {LOG_IN}")
        return NoRepositoryError(
            errno.ENOENT, f"cannot {what}: there is no such repository, or the token cannot see it"
        )
    if isinstance(error, EntryNotFoundError | RevisionNotFoundError):
        return FileNotFoundError(errno.ENOENT, f"cannot {what}: there is no such file")
    if status in _MOVED_ON:
        return MovedOnError(errno.EAGAIN, f"{text}. Somebody else commits to it all the time; try again")
    return OSError(errno.EIO, f"{text}. Check the network, HF_ENDPOINT and https://status.huggingface.co")


class _OwnThreads(logging.Filter):
    """Drops the client's warning, given at each upload, that what is read from a file object goes not by Xet."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.threadName == _THREAD and "binary IO buffer" in record.getMessage())


_own_threads = _OwnThreads()


def _be_quiet() -> None:
    logging.getLogger("huggingface_hub._commit_api").addFilter(_own_threads)  # once: it is the same one
