"""The process beside a job that keeps one mirror up to date: `python -m keepstep.ops.mirror.process`.

It is a process of its own so that it takes neither the interpreter lock nor the priority of the job, and so that
nothing that happens to it happens to the job. Lines of JSON come on its standard input: first what it is to do, then
`{"committed": step, "forced": bool}` for each checkpoint, and `{"finish": true}` when no more will come. Events go to
its standard output. It ends when its input does: a job that was killed leaves nothing running.
"""

import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any

from keepstep.config.address import parse_address
from keepstep.errors import CouldNotLookError, KeepstepError, RunInUseError
from keepstep.ops.mirror.fence import Fence
from keepstep.ops.mirror.uploader import Uploader, Wishes
from keepstep.plan.layout import Naming
from keepstep.plan.mirror import back_off_seconds
from keepstep.storage.priority import stand_back
from keepstep.storage.stores.meter import Meter
from keepstep.storage.stores.opening import open_store

_PARENT_SECONDS = 1.0
# It takes what the job and its loaders leave.
_NICE = 19
# Progress is told of whenever so much more has been sent.
_TOLD_BYTES = 8 * 1024 * 1024
_telling = threading.Lock()


class Commands:
    """What the job says, as it comes."""

    def __init__(self) -> None:
        self.first: dict[str, Any] = json.loads(sys.stdin.readline())
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.is_finishing = False
        self.forced: set[int] = set()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._watch, args=(os.getppid(),), daemon=True).start()

    def wait(self, seconds: float | None) -> None:
        """Wait until the job says something, or for so long; take all that it has said."""
        try:
            self._take(self._lines.get(timeout=seconds))
            while True:
                self._take(self._lines.get_nowait())
        except queue.Empty:
            return

    def _take(self, line: dict[str, Any]) -> None:
        self.is_finishing |= bool(line.get("finish"))
        if line.get("forced"):
            self.forced.add(int(line["committed"]))

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(json.loads(line))
        os._exit(0)  # the job is gone

    def _watch(self, parent: int) -> None:
        # A worker that the job has forked may hold the other end of our input for longer than the job lives.
        pause = threading.Event()
        while not pause.wait(_PARENT_SECONDS):
            if os.getppid() != parent:
                os._exit(0)


def tell(event: dict[str, Any]) -> None:
    """Send an event to the job."""
    with _telling:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Serve until the job says that no more comes and all is uploaded, or until it is gone."""
    stand_back(_NICE)  # before any other thread is there: they inherit it
    commands = Commands()
    told = commands.first
    address = parse_address(told["address"])
    store = open_store(address)
    rate = told.get("max_mib_per_second")
    fence = Fence(store, told["prefix"], told["attempt"], told["holder"])
    uploader = Uploader(
        Path(told["folder"]),
        store,
        told["prefix"],
        Wishes(told.get("period_steps"), told.get("num_to_keep"), Naming(told["naming"])),
        fence,
        meter=lambda: Meter(None if rate is None else rate * 2**20, _Progress().add, fence.glance),
        tell=tell,
        forced=commands.forced,
    )
    failures, has_begun = 0, False
    while True:
        due = None
        try:
            if not has_begun:
                uploader.begin()
                has_begun = True
            if due := next(iter(uploader.due()), None):
                tell({"event": "uploading", "step": due.step, "attempt": due.attempt})
                uploader.upload(due)
            failures = 0
        except RunInUseError as error:
            tell({"event": "lost", "problem": str(error)})
            return
        except (OSError, KeepstepError) as error:
            failures += 1
            step = {"step": due.step, "attempt": due.attempt} if due else {}
            tell({"event": "failed", "problem": _text(error), "failures": failures, **step})
        if failures:
            commands.wait(back_off_seconds(failures))
        elif due is None:
            if commands.is_finishing:
                tell({"event": "finished"})
                return
            commands.wait(None)


class _Progress:
    def __init__(self) -> None:
        self._sent = self._told = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._sent += count
            if self._sent - self._told >= _TOLD_BYTES:
                self._told = self._sent
                tell({"event": "sent", "bytes": self._sent})


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, CouldNotLookError) and error.strerror:
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{where}"
    return str(error)


if __name__ == "__main__":
    main()
