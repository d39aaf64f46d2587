"""The process beside the job that fills one mirror (`keepstep.ops.mirror.process`), as the job sees it."""

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from keepstep.config.mirror import MirrorConfig
from keepstep.plan.layout import Naming
from keepstep.plan.mirror import Copy
from keepstep.storage.save_log import SaveLog

logger = logging.getLogger("keepstep")

_MODULE = "keepstep.ops.mirror.process"
_MOST_STARTS = 5
_TOLD_SECONDS = 10.0
_LONGEST_ERROR = 2000
_KILL_SECONDS = 5.0


@dataclass(frozen=True)
class Work:
    """What such a process is to do: whose checkpoints go where, by which attempt of the run."""

    mirror: MirrorConfig
    folder: Path
    prefix: str
    attempt: int
    holder: str
    naming: Naming

    def line(self) -> str:
        """In the form in which the process is told."""
        mirror = self.mirror
        told = {
            "address": mirror.address,
            "period_steps": mirror.period_steps,
            "num_to_keep": mirror.num_to_keep,
            "max_mib_per_second": mirror.max_mib_per_second,
            "folder": str(self.folder.resolve()),
            "prefix": self.prefix,
            "attempt": self.attempt,
            "holder": self.holder,
            "naming": self.naming.prefix,
        }
        return json.dumps(told) + "\n"


class Beside:
    """One such process, and what it has told. Nothing that happens to it raises here.

    Args:
        work: what it does.
        mirrored: what is known to be there.
        command: how it is started.

    Attributes:
        failures: uploads that failed, and starts of the process.
        is_lost: another job has the mirror: nothing more goes there.
    """

    def __init__(self, work: Work, mirrored: Collection[Copy] = (), command: list[str] | None = None) -> None:
        self.work = work
        self._command = command or [sys.executable, "-P", "-m", _MODULE]
        self._log = SaveLog(work.folder)
        self._lock = threading.Condition()
        self._mirrored = set(mirrored)
        self._current: Copy | None = None
        self._since = self._told = time.monotonic()
        self._sent = 0
        self._starts = 0
        self._is_finished = self._is_finishing = self._is_closing = False
        self._forced: list[int] = []
        self.failures = 0
        self.is_lost = False
        self._process: subprocess.Popen[str] | None = None
        self._outbox: SimpleQueue[str | None] = SimpleQueue()
        self._start()

    @property
    def mirrored(self) -> frozenset[Copy]:
        """What is known to be on the mirror."""
        with self._lock:
            return frozenset(self._mirrored)

    @property
    def is_uploading(self) -> Copy | None:
        """What is sent now."""
        with self._lock:
            return self._current

    def committed(self, step: int, *, forced: bool) -> None:
        """Tell of a checkpoint. `forced`: it goes there whatever the period."""
        if forced:
            self._forced.append(step)
        if self._process is None and not self.is_lost:
            self._start()
        self._say({"committed": step, "forced": forced})

    def say_finish(self) -> None:
        """Tell it that no more checkpoints come."""
        self._is_finishing = True
        self._say({"finish": True})

    def finish(self, left: Callable[[], float]) -> bool:
        """Let it upload what is due, and wait for that. Returns whether all is there.

        Args:
            left: asked every second how many seconds remain.
        """
        self.say_finish()
        while not self._is_finished and not self.is_lost and (seconds := left()) > 0:
            if self._process is None and not self._start():
                break
            with self._lock:
                self._lock.wait(min(seconds, 1.0))
                self._tell_progress()
        self.close()
        return self._is_finished

    def close(self) -> None:
        """End it at once. One that hangs in the kernel, as on a drive that does not answer, is not waited for long."""
        self._is_closing = True
        process = self._process
        if process is None:
            return
        process.kill()
        try:
            process.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            address = self.work.mirror.address
            logger.warning("the process that uploads to %s (pid %d) does not end: it hangs there", address, process.pid)

    def _start(self) -> bool:
        """Start the process. Returns False where that has failed too often in a row."""
        if self._starts >= _MOST_STARTS:
            return False
        self._starts += 1
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        errors: Any = None
        try:
            errors = tempfile.TemporaryFile()  # noqa: SIM115 - the thread closes it
            # In a group of its own: Ctrl-C is for the job, which then says what is to become of the uploads. Not in a
            # session of its own: Linux shares out time among sessions first, so a low priority would count for nothing.
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                process_group=0,
                env=environment,
            )
        except OSError as error:
            if errors is not None:
                errors.close()
            self._take_failure(None, f"the process that uploads could not be started: {error}", 1)
            return self._starts < _MOST_STARTS
        self._process, self._current, self._outbox = process, None, SimpleQueue()
        self._outbox.put(self.work.line())
        for step in self._forced:
            self._say({"committed": step, "forced": True})
        if self._is_finishing:
            self._say({"finish": True})
        # A process that hangs reads nothing, and a pipe that is full would stop whoever writes: the job must not.
        try:
            for target, more in ((self._listen, errors), (self._speak, self._outbox)):
                threading.Thread(target=target, args=(process, more), name="keepstep-mirror", daemon=True).start()
        except RuntimeError as error:  # the system gives no more threads
            self._process = None
            process.kill()
            self._take_failure(None, f"the process that uploads cannot be listened to: {error}", 1)
            return self._starts < _MOST_STARTS
        return True

    def _say(self, command: Mapping[str, Any]) -> None:
        if self._process is not None:
            self._outbox.put(json.dumps(command) + "\n")

    def _speak(self, process: "subprocess.Popen[str]", outbox: "SimpleQueue[str | None]") -> None:
        assert process.stdin is not None
        while (line := outbox.get()) is not None:
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except (OSError, ValueError):
                return  # it is gone; the thread that listens tells of it

    def _listen(self, process: "subprocess.Popen[str]", errors: Any) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            self._on_event(event)
        code = process.wait()
        self._outbox.put(None)
        with errors:
            errors.seek(0)
            text = errors.read().decode(errors="replace").strip()[-_LONGEST_ERROR:]
        with self._lock:
            if self._process is process:
                self._process = None
            is_odd = not (self._is_finished or self.is_lost or self._is_closing)
            self._lock.notify_all()
        if is_odd:
            again = "" if self._starts < _MOST_STARTS else ". It is not started again: nothing more is copied there"
            problem = f"the process that uploads ended with code {code}: {text or 'no word'}{again}"
            self._take_failure(None, problem, 1)

    def _on_event(self, event: Mapping[str, Any]) -> None:
        kind, address = event.get("event"), self.work.mirror.address
        copy = Copy(int(event["step"]), int(event.get("attempt", 0))) if "step" in event else None
        with self._lock:
            if kind == "begun":
                self._mirrored = {Copy(step, attempt) for step, attempt in event["mirrored"]}
            elif kind == "uploading" and copy != self._current:
                self._current, self._since, self._sent = copy, time.monotonic(), 0
            elif kind == "sent":
                self._sent = int(event["bytes"])
            elif kind == "mirrored" and copy is not None:
                self._mirrored = {one for one in self._mirrored if one.step != copy.step} | {copy}
                self._current, self._starts = None, 0
            elif kind == "deleted" and copy is not None:
                self._mirrored = {one for one in self._mirrored if one.step != copy.step}
            elif kind == "finished":
                self._is_finished = True
            elif kind == "lost":
                self.is_lost = True
            self._lock.notify_all()
        if kind == "mirrored" and copy is not None:
            seconds = time.monotonic() - self._since
            logger.info("step %d is on %s (%.1f MB, %.1f s)", copy.step, address, event["bytes"] / 1e6, seconds)
            self._log.mirrored(copy.step, copy.attempt, address, int(event["bytes"]), seconds)
        elif kind == "failed":
            self._take_failure(copy, str(event["problem"]), int(event["failures"]))
        elif kind in ("given up", "lost"):
            self._take_failure(copy, str(event["problem"]), 1)

    def _take_failure(self, copy: Copy | None, problem: str, in_a_row: int) -> None:
        self.failures += 1
        address = self.work.mirror.address
        what = f"step {copy.step} is not on {address} yet" if copy else f"nothing goes to {address}"
        # The first, and then fewer and fewer of them: an outage of hours must not fill the log.
        if in_a_row & (in_a_row - 1) == 0:
            logger.warning("%s: %s (failure %d in a row; the job goes on)", what, problem, in_a_row)
        self._log.not_mirrored(copy.step if copy else None, self.work.attempt, address, problem)

    def _tell_progress(self) -> None:
        """While somebody waits. With the lock held."""
        if self._current is None or time.monotonic() - self._told < _TOLD_SECONDS:
            return
        self._told = time.monotonic()
        logger.info(
            "waiting for the upload of step %d to %s: %.0f MB sent",
            self._current.step,
            self.work.mirror.address,
            self._sent / 1e6,
        )
