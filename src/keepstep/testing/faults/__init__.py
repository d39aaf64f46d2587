"""Faults for one's own jobs: killed at a system call, a power cut, a full disk, a slow rank. See docs/faults.md."""

from keepstep.errors import FaultError
from keepstep.testing.faults.bench import Outcome, run_with
from keepstep.testing.faults.crash_states import CrashState, crash_states
from keepstep.testing.faults.faults import CALLS, CREATES, RENAMES, SYNCS, UNLINKS, WRITES, Fail, Fault, Kill, Slow
from keepstep.testing.faults.files import cut, flip_bit, hidden, small_disk, swap
from keepstep.testing.faults.matrix import CrashReport, crash_matrix
from keepstep.testing.faults.power import PowerReport, Recording, materialize, power_cuts
from keepstep.testing.faults.recording import STRACE_OPTIONS, RecordingError, read_recording

__all__ = [
    "CALLS",
    "CREATES",
    "RENAMES",
    "STRACE_OPTIONS",
    "SYNCS",
    "UNLINKS",
    "WRITES",
    "CrashReport",
    "CrashState",
    "Fail",
    "Fault",
    "FaultError",
    "Kill",
    "Outcome",
    "PowerReport",
    "Recording",
    "RecordingError",
    "Slow",
    "crash_matrix",
    "crash_states",
    "cut",
    "flip_bit",
    "hidden",
    "materialize",
    "power_cuts",
    "read_recording",
    "run_with",
    "small_disk",
    "swap",
]
