"""Kills a process at its n-th system call of a kind, seen by the kernel's tracer and not by patched functions."""

import re
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.rig.forks import Rank

CALLS = (
    "pwrite64",
    "write",
    "openat",
    "fsync",
    "fdatasync",
    "rename",
    "link",
    "renameat2",
    "unlink",
    "unlinkat",
    "mkdir",
    "rmdir",
)


def require_strace(tmp: Path) -> None:
    """Skip where processes cannot be traced."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (Debian: apt-get install strace)")
    probe = subprocess.run(["strace", "-o", str(tmp / "probe"), "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"processes cannot be traced here: {probe.stderr.strip()}")


class Tracer:
    """strace on a waiting rank.

    By default on its main thread: a save of small state happens there, and the count is the same in every run. With
    `threads` it follows all of them (saves in the background); calls are then counted for each thread by itself.
    """

    def __init__(
        self,
        rank: Rank,
        log: Path,
        kill_at: tuple[str, int] | None = None,
        *,
        threads: bool = False,
        fault: str = "signal=SIGKILL",
    ) -> None:
        self._log = log
        command = ["strace", "-qq", "-o", str(log), "-e", f"trace={','.join(CALLS)}", "-p", str(rank.pid)]
        command += ["-f"] if threads else []
        if kill_at is not None:
            command += ["-e", f"inject={kill_at[0]}:{fault}:when={kill_at[1]}"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 20
        while "TracerPid:\t0" in Path(f"/proc/{rank.pid}/status").read_text():
            assert self._process.poll() is None, f"strace ended: {self._process.stderr.read().decode()}"
            assert time.monotonic() < deadline, "strace did not attach"
            time.sleep(0.002)

    def counts(self) -> Counter[str]:
        """Wait for the end of the traced process; how often it made each call: the most that one thread made."""
        self._process.wait(timeout=60)
        self._process.stderr.close()
        found: Counter[tuple[str, str]] = Counter()
        for thread, name in re.findall(r"^(?:(\d+) +)?(\w+)\(", self._log.read_text(errors="replace"), re.MULTILINE):
            found[thread, name] += name in CALLS
        most: Counter[str] = Counter()
        for (_, name), count in found.items():
            if count:
                most[name] = max(most[name], count)
        return most
