"""A store that is asked from a process of its own.

The client of object stores keeps threads and a poll set that do not survive a fork: where a job has used it and then
forks workers that use it too (a data set may), the job itself crashes (tried, obstore 0.12). So a job never
loads it: `ApartStore` starts `python -m keepstep.storage.stores.serve`, and hands over bytes through sockets.
"""

import errno
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keepstep.config.address import OBJECT_STORES, Address
from keepstep.errors import ConfigError
from keepstep.storage.stores.base import Store, StoredObject, Upload
from keepstep.storage.stores.meter import Meter
from keepstep.storage.stores.opening import open_store

_MODULE = "keepstep.storage.stores.serve"
_KINDS = {one.__name__: one for one in (FileNotFoundError, PermissionError, FileExistsError)}


def open_apart(address: Address) -> "ApartStore | Store":
    """Open a store such that this process may fork afterwards. Raises as `open_store`."""
    return ApartStore(address) if address.scheme in OBJECT_STORES else open_store(address)


class ApartStore:
    """Reads from a store in another process, which starts with the first request and ends with `close`.

    Several threads may ask at once. It is for reading: uploads have a process of their own already.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._idle: list[socket.socket] = []

    @property
    def address(self) -> str:
        return str(self._address)

    def list(self, prefix: str = "") -> list[StoredObject]:
        found = json.loads(self._ask({"do": "list", "prefix": prefix}))
        return [StoredObject(*one) for one in found]

    def read(self, name: str, limit: int) -> bytes:
        return self._ask({"do": "read", "name": name, "limit": limit})

    def read_into(self, name: str, offset: int, target: memoryview) -> None:
        self._ask({"do": "range", "name": name, "offset": offset, "length": len(target)}, target)

    def put(
        self, uploads: Sequence[Upload], last: Upload, meter: Meter, confirm: Callable[[], None] = lambda: None
    ) -> None:
        raise OSError(errno.EROFS, "this way into the store is for reading", self.address)

    def write(self, name: str, data: bytes) -> None:
        raise OSError(errno.EROFS, "this way into the store is for reading", self.address)

    def create(self, name: str, data: bytes) -> bool:
        raise OSError(errno.EROFS, "this way into the store is for reading", self.address)

    def remove(self, prefix: str, first: str) -> None:
        raise OSError(errno.EROFS, "this way into the store is for reading", self.address)

    def close(self) -> None:
        """End the process. May be called twice; a later request starts another one."""
        with self._lock:
            for one in (*self._idle, *([self._control] if self._control else [])):
                one.close()
            self._idle, self._control = [], None
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def __del__(self) -> None:
        self.close()

    def _ask(self, request: Mapping[str, Any], target: memoryview | None = None) -> bytes:
        connection = self._connection()
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            head = json.loads(_line(connection))
            data = target if target is not None and "size" in head else memoryview(bytearray(head.get("size", 0)))
            _fill(connection, data)
        except (ConnectionError, ValueError) as error:
            connection.close()
            raise OSError(errno.EIO, f"the process that asks {self.address} has ended") from error
        with self._lock:
            self._idle.append(connection)
        if "error" in head:
            raise _error_of(head)
        return b"" if target is not None else bytes(data)

    def _connection(self) -> socket.socket:
        with self._lock:
            if self._control is None:
                self._start()
            assert self._control is not None
            if self._idle:
                return self._idle.pop()
            own, other = socket.socketpair()
            with other:
                socket.send_fds(self._control, [b"."], [other.fileno()])
            return own

    def _start(self) -> None:
        own, other = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(other.fileno()), self.address],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                env=environment,
                process_group=0,
            )
        self._control = own


def _line(connection: socket.socket) -> bytes:
    found = bytearray()
    while not found.endswith(b"\n"):
        one = connection.recv(1)
        if not one:
            raise ConnectionError("no answer")
        found += one
    return bytes(found)


def _fill(connection: socket.socket, target: memoryview) -> None:
    while target:
        count = connection.recv_into(target)
        if not count:
            raise ConnectionError("an answer was cut off")
        target = target[count:]


def _error_of(head: Mapping[str, Any]) -> Exception:
    text = str(head["text"])
    if head["error"] == "EOFError":
        return EOFError(text)
    if head["error"] == "ConfigError":
        return ConfigError(text)
    return _KINDS.get(str(head["error"]), OSError)(int(head["errno"]), text)
