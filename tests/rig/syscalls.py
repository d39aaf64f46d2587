"""The injector of `keepstep.testing.faults` on a forked rank that waits at its gate: attached from outside."""

import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from keepstep.testing.faults import CALLS, Fault
from keepstep.testing.faults.calls import count_calls
from keepstep.testing.faults.faults import options_of
from tests.rig.forks import Rank


def require_strace(tmp: Path) -> None:
    """Skip where processes cannot be traced."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (Debian: apt-get install strace)")
    probe = subprocess.run(["strace", "-o", str(tmp / "probe"), "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"processes cannot be traced here: {probe.stderr.strip()}")


def count(log: Path) -> Counter[str]:
    """How often a rank made each call: the most that one of its threads did."""
    return Counter({name: number for name, number in count_calls(log).items() if name in CALLS})


def _is_untraced(pid: int) -> bool:
    try:
        return "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it waited for its tracer, and has ended since
        return False


class Tracer:
    """strace on a waiting rank.

    By default on its main thread: a save of small state happens there, and the count is the same in every run. With
    `threads` it follows all of them (saves in the background); calls are then counted for each thread by itself.

    Args:
        rank: whom to trace.
        log: where its calls are written.
        hit: what happens to it.
        threads: whether all threads are followed.
        options: of strace, in place of those that faults and counts need.
    """

    def __init__(
        self,
        rank: Rank,
        log: Path,
        hit: Fault | None = None,
        *,
        threads: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        self.log = log
        options = options or options_of([hit] if hit is not None else [])
        command = ["strace", "-qq", "-o", str(log), *options, "-p", str(rank.pid), *(["-f"] if threads else [])]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 20
        while _is_untraced(rank.pid):
            assert self._process.poll() is None, f"strace ended: {self._process.stderr.read().decode()}"
            assert time.monotonic() < deadline, "strace did not attach"
            time.sleep(0.002)

    def wait(self) -> None:
        """Wait for the end of the traced process."""
        self._process.wait(timeout=60)
        self._process.stderr.close()

    def counts(self) -> Counter[str]:
        """The same; how often it made each call."""
        self.wait()
        return count(self.log)
