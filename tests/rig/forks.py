"""Ranks as forked processes: they start in milliseconds, since torch is imported already."""

import atexit
import itertools
import os
import pickle
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from keepstep.dist.world import GroupWorld, SingleWorld, World

TIMEOUT = timedelta(seconds=20)

_meetings = itertools.count()


@atexit.register
def _clear() -> None:
    for file in Path(tempfile.gettempdir()).glob(f"keepstep-rig-{os.getpid()}-*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)


class FolderMailbox:
    """Messages as files. (A FileStore loops for ever when a rank was killed while it wrote to the store's file.)"""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / name.replace("/", "_")

    def put(self, name: str, value: Any) -> None:
        scratch = self._path(f".{os.getpid()}-{threading.get_native_id()}")
        scratch.write_bytes(pickle.dumps(value))
        scratch.replace(self._path(name))

    def wait(self, name: str, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            with suppress(FileNotFoundError):
                return pickle.loads(self._path(name).read_bytes())
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.003)

    def clear(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)


class RigWorld(GroupWorld):
    """Its ranks may be killed at any system call."""

    def __init__(self, folder: Path) -> None:
        super().__init__(TIMEOUT)
        self._folder = folder

    def mailbox(self, name: str) -> FolderMailbox:
        return FolderMailbox(self._folder / name)


# The ranks of this process, met before its gate: a kill then hits the job, and not its start.
world: World = SingleWorld()


@dataclass
class Ended:
    """How a rank ended: its exit status (negative: signal) and what its function returned or raised."""

    status: int
    value: Any = None
    error: BaseException | None = None

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL


class Rank:
    """One forked process. It waits at a gate until `go` is called, so that a tracer can be attached before."""

    def __init__(self, work: Callable[[], Any], rank: int, size: int, meeting: str) -> None:
        gate, self._gate = os.pipe()
        self._result, result = os.pipe()
        ready, is_ready = os.pipe()
        self._ready = ready
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._gate)
            os.close(self._result)
            _child(work, rank, size, meeting, gate, is_ready, result)
        for end in (gate, result, is_ready):
            os.close(end)

    def await_ready(self) -> None:
        """Wait until the process has met the others and stands at its gate."""
        os.read(self._ready, 1)
        os.close(self._ready)

    def go(self) -> None:
        os.write(self._gate, b"x")
        os.close(self._gate)

    def kill(self, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, seconds: float = 60) -> Ended:
        """Read the result until the process ends; kill it when that takes too long."""
        deadline, data = time.monotonic() + seconds, b""
        while True:
            ready, _, _ = select.select([self._result], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.kill()
                os.waitpid(self.pid, 0)
                os.close(self._result)
                raise TimeoutError(f"rank with pid {self.pid} did not end in {seconds} s")
            part = os.read(self._result, 1 << 20)
            if not part:
                break
            data += part
        _, status = os.waitpid(self.pid, 0)
        os.close(self._result)
        kind, value = pickle.loads(data) if data else ("none", None)
        code = os.waitstatus_to_exitcode(status)
        return Ended(code, value, None) if kind != "error" else Ended(code, None, value)


def _child(work: Callable[[], Any], rank: int, size: int, meeting: str, gate: int, is_ready: int, result: int) -> None:
    global world
    code, answer = 1, ("none", None)
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        torch.manual_seed(0)
        if size > 1:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
            # A file, and no port: it cannot be taken by another test, and rank 0 may leave before the others.
            address = f"file://{meeting}"
            dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size, timeout=TIMEOUT)
            world = RigWorld(Path(f"{meeting}-box"))
        os.write(is_ready, b"x")
        os.read(gate, 1)
        answer, code = ("value", work()), 0
    except BaseException as error:  # noqa: BLE001 - it is handed to the parent
        answer = ("error", _picklable(error))
        code = getattr(error, "exit_code", 1)
    with suppress(Exception):
        os.write(result, pickle.dumps(answer))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no clean-up of the parent's: pytest lives in this process too


def _picklable(error: BaseException) -> BaseException:
    with suppress(Exception):
        pickle.loads(pickle.dumps(error))
        return error
    text = "".join(traceback.format_exception(error))
    return RuntimeError(f"{type(error).__name__}: {error}\n{text}")


def start(work: Callable[[], Any], size: int = 1) -> list[Rank]:
    """Fork `size` ranks that run `work`; they wait for `go`."""
    meeting = f"{tempfile.gettempdir()}/keepstep-rig-{os.getpid()}-{next(_meetings)}"
    ranks = [Rank(work, rank, size, meeting) for rank in range(size)]
    for rank in ranks:
        rank.await_ready()
    return ranks


def run(work: Callable[[], Any], size: int = 1, seconds: float = 60) -> list[Ended]:
    """Run `work` on `size` ranks and wait for all of them."""
    ranks = start(work, size)
    for rank in ranks:
        rank.go()
    return wait_all(ranks, seconds)


def wait_all(ranks: list[Rank], seconds: float = 60) -> list[Ended]:
    ended = []
    for position, rank in enumerate(ranks):
        try:
            ended.append(rank.wait(seconds))
        except TimeoutError:
            for other in ranks[position + 1 :]:
                other.kill()
                other.wait(seconds)
            raise
    return ended


def values(work: Callable[[], Any], size: int = 1, seconds: float = 60) -> list[Any]:
    """Run `work` on `size` ranks; raises what a rank raised, returns what they returned."""
    ended = run(work, size, seconds)
    for one in ended:
        if one.error is not None:
            raise one.error
        assert one.status == 0, f"a rank ended with status {one.status}"
    return [one.value for one in ended]
