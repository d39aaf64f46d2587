"""A small web server that gives the files of a folder, and parts of them, and can have a bad day."""

import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any


@dataclass
class WebManners:
    """What the server does. `answers`: statuses of the next requests, in place of the file."""

    answers: list[int] = field(default_factory=list)
    location: str = ""
    ranges: bool = True
    cut: int = 0
    paths: list[str] = field(default_factory=list)


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments: Any, manners: WebManners, directory: str) -> None:
        self.manners = manners
        super().__init__(*arguments, directory=directory)

    def do_GET(self) -> None:
        self.manners.paths.append(self.path)
        if self.manners.answers:
            self.send_response(self.manners.answers.pop(0))
            if self.manners.location:
                self.send_header("Location", self.manners.location)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data, size = path.read_bytes(), path.stat().st_size
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found and self.manners.ranges:
            begin, end = int(found[1]), min(int(found[2]) + 1, size)
            if begin >= size:
                self.send_error(416)
                return
            data = data[begin:end]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.manners.cut:
            self.manners.cut -= 1
            data = data[:1]
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def web_server(folder: Path, manners: WebManners) -> Iterator[str]:
    """Yields the address of the folder."""
    handler = partial(_Handler, manners=manners, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
