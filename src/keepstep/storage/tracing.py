"""Lets a process have its own system calls traced and made to fail, for tests (`keepstep.testing.faults`).

It is switched on by the environment, so that it reaches any rank of any job, however that was launched.
"""

import ctypes
import json
import os
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from keepstep.errors import FaultError

VARIABLE = "KEEPSTEP_FAULT"
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = -1
_SECONDS = 30.0


@dataclass(frozen=True)
class TraceSettings:
    """What is done to a job.

    Attributes:
        save_dir: where it saves, whatever its configuration says.
        rank: whose calls are traced; None for those of every rank.
        options: of strace: what is traced and what is injected.
        log: where calls are written (`log_of`), and in `<log>.start` the step that the job began at.
        others: options of strace for the ranks that are not meant; none, and they are not traced.
    """

    save_dir: str
    rank: int | None
    options: tuple[str, ...]
    log: str
    others: tuple[str, ...] = ()

    def to_environment(self) -> dict[str, str]:
        """The variable that switches it on."""
        return {VARIABLE: json.dumps(asdict(self))}

    def log_of(self, rank: int) -> Path:
        """Where a rank's calls are written."""
        return Path(f"{self.log}.rank_{rank}")


def settings_from_environment() -> TraceSettings | None:
    """What is to be done to this job, None in a usual one."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    found = json.loads(text)
    return TraceSettings(**{**found, "options": tuple(found["options"]), "others": tuple(found["others"])})


def trace_this_process(rank: int) -> None:
    """Attach a tracer to this process if its rank is meant. Returns when it is attached.

    Once for each rank: a launcher that starts the ranks again starts them without faults.

    Raises:
        FaultError: strace is missing, or may not attach.
    """
    settings = settings_from_environment()
    if settings is None:
        return
    options = settings.options if settings.rank in (None, rank) else settings.others
    log = settings.log_of(rank)
    if not options or log.exists():
        return
    if _tracer():
        raise FaultError(f"process {os.getpid()} is traced by something else; faults need to trace it themselves")
    # Where a security module lets only parents trace (Yama), the process says that its own child may.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)
    command = ["strace", "-f", "-qq", "-o", str(log), *options, "-p", str(os.getpid())]
    try:
        tracer = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
    except FileNotFoundError:
        raise FaultError("strace is not installed (Debian: apt-get install strace)") from None
    deadline = time.monotonic() + _SECONDS
    while not _tracer():
        if tracer.poll() is not None or time.monotonic() > deadline:
            problem = (
                tracer.stderr.read().decode().strip() if tracer.stderr and tracer.poll() is not None else "no answer"
            )
            raise FaultError(f"strace could not attach to process {os.getpid()}: {problem}")
        time.sleep(0.002)


def note_start(step: int) -> None:
    """Tell the test at which step the job begins."""
    settings = settings_from_environment()
    if settings is not None:
        Path(f"{settings.log}.start").write_text(str(step))


def _tracer() -> bool:
    return "TracerPid:\t0" not in Path("/proc/self/status").read_text()
