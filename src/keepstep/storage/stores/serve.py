"""The process behind `ApartStore`: `python -m keepstep.storage.stores.serve <socket> <address>`."""

import contextlib
import errno
import json
import os
import socket
import sys
import threading
from typing import Any

from keepstep.config.address import parse_address
from keepstep.errors import ConfigError, KeepstepError
from keepstep.storage.stores.base import Store
from keepstep.storage.stores.opening import open_store

_PARENT_SECONDS = 1.0


def answer(store: Store, request: dict[str, Any]) -> bytes | bytearray:
    """Do what is asked. Raises as the store does."""
    match request["do"]:
        case "list":
            found = store.list(request["prefix"])
            return json.dumps([[one.name, one.size, one.modified, one.tag] for one in found]).encode()
        case "read":
            return store.read(request["name"], request["limit"])
        case "range":
            target = bytearray(request["length"])
            store.read_into(request["name"], request["offset"], memoryview(target))
            return target
        case other:
            raise ValueError(f"{other} is no request")


def serve(connection: socket.socket, store: Store | KeepstepError) -> None:
    """Answer one request after the other, until the other side closes: as the store does, or with this error."""
    with contextlib.suppress(ConnectionError), connection, connection.makefile("rb") as requests:
        for line in requests:
            data: bytes | bytearray = b""
            try:
                if isinstance(store, KeepstepError):
                    raise store
                data = answer(store, json.loads(line))
                head: dict[str, Any] = {"size": len(data)}
            except (OSError, EOFError, ConfigError) as error:
                text = getattr(error, "strerror", None) or str(error)
                code = getattr(error, "errno", None) or errno.EIO
                head = {"error": type(error).__name__, "text": text, "errno": code}
            connection.sendall(json.dumps(head).encode() + b"\n")
            connection.sendall(data)


def main() -> None:
    """Serve connections until the job closes its end, or is gone."""
    parent = os.getppid()
    control = socket.socket(fileno=int(sys.argv[1]))
    control.settimeout(_PARENT_SECONDS)
    store: Store | KeepstepError
    try:
        store = open_store(parse_address(sys.argv[2]))
    except ConfigError as error:
        store = error
    while os.getppid() == parent:
        try:
            told, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        except TimeoutError:
            continue
        if not told:
            return
        for descriptor in descriptors:
            connection = socket.socket(fileno=descriptor)
            threading.Thread(target=serve, args=(connection, store), daemon=True).start()


if __name__ == "__main__":
    main()
