"""Messages between the background threads of ranks. No collective: those belong to the main threads."""

import pickle
import threading
import time
from typing import Any, Protocol

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

_LONGEST_PAUSE = 0.1


class Mailbox(Protocol):
    """Named messages that any rank can leave and any rank can wait for."""

    def put(self, name: str, value: Any) -> None:
        """Leave a message, in the place of an earlier one of this name."""

    def wait(self, name: str, seconds: float) -> Any:
        """The message of this name, None when there is none by then. Messages are never None."""

    def clear(self, name: str) -> None:
        """Take a message away, if it is there."""


class LocalMailbox:
    """For ranks that are threads of one process, and for a job of one."""

    def __init__(self) -> None:
        self._messages: dict[str, Any] = {}
        self._changed = threading.Condition()

    def put(self, name: str, value: Any) -> None:
        with self._changed:
            self._messages[name] = value
            self._changed.notify_all()

    def wait(self, name: str, seconds: float) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: name in self._messages, seconds)
            return self._messages.get(name)

    def clear(self, name: str) -> None:
        with self._changed:
            self._messages.pop(name, None)


class StoreMailbox:
    """Over the store that the ranks met at.

    It has a connection of its own: one that waits for an answer would hold up whoever shares it.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._origin = store  # held: it may be the one that serves all others
        own = store.clone() if hasattr(store, "clone") else store
        self._store = PrefixStore(f"keepstep/{name}", own)

    def put(self, name: str, value: Any) -> None:
        self._store.set(name, pickle.dumps(value))  # type: ignore[arg-type]

    def wait(self, name: str, seconds: float) -> Any:
        # Asked again and again: a store's own wait writes a warning whenever its time is over.
        deadline, pause = time.monotonic() + seconds, 0.002
        while not self._store.check([name]):
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return pickle.loads(self._store.get(name))

    def clear(self, name: str) -> None:
        self._store.delete_key(name)
