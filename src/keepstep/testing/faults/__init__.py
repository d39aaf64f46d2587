"""Faults for one's own jobs: killed at a system call, a full disk, a slow rank, a flipped bit. See docs/faults.md."""

from keepstep.errors import FaultError
from keepstep.testing.faults.crash_states import CrashState, crash_states
from keepstep.testing.faults.faults import CALLS, Fail, Fault, Kill, Slow
from keepstep.testing.faults.files import cut, flip_bit, hidden, small_disk, swap
from keepstep.testing.faults.matrix import CrashReport, Outcome, crash_matrix, run_with
from keepstep.testing.faults.recording import STRACE_OPTIONS, read_recording

__all__ = [
    "CALLS",
    "STRACE_OPTIONS",
    "CrashReport",
    "CrashState",
    "Fail",
    "Fault",
    "FaultError",
    "Kill",
    "Outcome",
    "Slow",
    "crash_matrix",
    "crash_states",
    "cut",
    "flip_bit",
    "hidden",
    "read_recording",
    "run_with",
    "small_disk",
    "swap",
]
