"""A headless Chromium, driven over its DevTools pipe: opens pages from files with no network and looks at them."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
    *("--disable-extensions", "--hide-scrollbars", "--proxy-server=127.0.0.1:9"),
)
_PATIENCE = 60.0


class Browser:
    """One page. `requests` are the addresses that it asked for, `messages` what it wrote to the console."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._count, self._rest = 0, b""
        self.requests: list[str] = []
        self.messages: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime", "Accessibility"):
            self.page(f"{domain}.enable")

    def page(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method on the page."""
        return self.call(method, self._session, **parameters)

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> float:
        """Open a file in a window of this size. Returns seconds until all of it is laid out and painted."""
        self.requests.clear()
        self.messages.clear()
        self.page(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.page("Emulation.setEmulatedMedia", features=scheme)
        began = time.monotonic()
        self.page("Page.navigate", url=path.resolve().as_uri())
        self._until("Page.loadEventFired")
        self.look("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return time.monotonic() - began

    def look(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.page("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def names(self) -> list[tuple[str, str]]:
        """Role and name of all that a screen reader tells."""
        nodes = self.page("Accessibility.getFullAXTree")["nodes"]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A screenshot as PNG."""
        shot = self.page("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method and wait for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        number = self._count
        answer = self._take(lambda one: one.get("id") == number)
        assert "error" not in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    def _until(self, event: str) -> None:
        self._take(lambda one: one.get("method") == event)

    def _take(self, is_it: Any) -> dict[str, Any]:
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            while b"\0" not in self._rest:
                piece = os.read(self._reads, 1 << 20)
                assert piece, "the browser is gone"
                self._rest += piece
            line, _, self._rest = self._rest.partition(b"\0")
            message: dict[str, Any] = json.loads(line)
            self._note(message)
            if is_it(message):
                return message
        raise AssertionError("the browser does not answer")

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif message.get("method") == "Log.entryAdded":
            self.messages.append(parameters["entry"]["text"])
        elif message.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.messages.append(json.dumps(parameters)[:500])


@contextmanager
def browser(scratch: Path) -> Iterator[Browser]:
    """Start one, with an empty profile in `scratch`."""
    assert CHROMIUM is not None
    to_read, its_writes = os.pipe()
    its_reads, to_write = os.pipe()
    # It reads from 3 and writes to 4.
    command = f'exec "$0" "$@" 3<&{its_reads} 4>&{its_writes}'
    words = [CHROMIUM, *_FLAGS, f"--user-data-dir={scratch / 'profile'}"]
    log = (scratch / "browser.log").open("wb")
    process = subprocess.Popen(
        ["bash", "-c", command, *words], pass_fds=(its_reads, its_writes), stderr=log, stdout=log
    )
    os.close(its_reads)
    os.close(its_writes)
    try:
        yield Browser(to_read, to_write)
    finally:
        os.close(to_write)
        os.close(to_read)
        process.terminate()
        process.wait(30)
        log.close()
