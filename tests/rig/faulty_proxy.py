"""A small proxy between a client and an HTTP server that can do what networks and servers do on a bad day."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_REQUEST = re.compile(rb"^(GET|PUT|POST|DELETE|HEAD) (\S+) HTTP/1\.1\r\n")
_CHUNK = 64 * 1024


@dataclass
class Manners:
    """What the proxy does; may be changed while it runs.

    Attributes:
        refuse: connections are closed at once.
        answer: a status that is answered in place of the server, for requests for which `when`
            (method and path) is true.
        cut_after: a connection is cut after so many bytes from the client.
        bytes_per_second: the most that goes from the client to the server, over all connections.
        flip: a byte in the body of each request that is longer than 2000 bytes becomes another one.
    """

    refuse: bool = False
    answer: int = 0
    when: Callable[[str, str], bool] = lambda method, path: True
    cut_after: int = 0
    bytes_per_second: float = 0.0
    flip: bool = False
    requests: list[tuple[str, str]] = field(default_factory=list)


class FaultyProxy:
    """Forwards from a free port to `port`. A context manager."""

    def __init__(self, port: int) -> None:
        self.manners = Manners()
        self._target = ("127.0.0.1", port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Cut all connections that are open now."""
        with self._lock:
            open_now = list(self._open)
        for one in open_now:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> "FaultyProxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if self.manners.refuse:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            threading.Thread(target=self._upstream, args=(client, server), daemon=True).start()
            threading.Thread(target=self._downstream, args=(server, client), daemon=True).start()

    def _upstream(self, client: socket.socket, server: socket.socket) -> None:
        sent = 0
        try:
            while data := client.recv(_CHUNK):
                manners = self.manners
                if found := _REQUEST.match(data):
                    method, path = found[1].decode(), found[2].decode()
                    manners.requests.append((method, path))
                    if manners.answer and manners.when(method, path):
                        client.sendall(
                            b"HTTP/1.1 %d Bad Day\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % manners.answer
                        )
                        break
                if manners.flip and len(data) > 2000:
                    data = data[:-500] + bytes([data[-500] ^ 1]) + data[-499:]
                sent += len(data)
                if manners.refuse or (manners.cut_after and sent > manners.cut_after):
                    break
                self._hold_back(len(data))
                server.sendall(data)
        except OSError:
            pass
        self._drop(client, server)

    def _downstream(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(_CHUNK):
                client.sendall(data)
        self._drop(client, server)

    def _hold_back(self, count: int) -> None:
        if not (rate := self.manners.bytes_per_second):
            return
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + count / rate
            wait = self._free_at - time.monotonic()
        time.sleep(max(0.0, wait))

    def _drop(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            with self._lock:
                self._open.discard(one)
            one.close()
