"""What may happen to a rank at a system call."""

from collections.abc import Sequence
from dataclasses import dataclass

from keepstep.testing.faults.calls import traced

# The calls by which a save changes a disk. No writev: sockets of ranks that talk to each other make most of those.
CREATES = ("openat", "mkdir", "mkdirat", "link", "linkat")
WRITES = ("write", "pwrite64", "pwritev", "pwritev2", "ftruncate", "fallocate", "copy_file_range", "sendfile")
SYNCS = ("fsync", "fdatasync", "sync_file_range", "syncfs")
RENAMES = ("rename", "renameat", "renameat2")
UNLINKS = ("unlink", "unlinkat", "rmdir")
CALLS = (*CREATES, *WRITES, *SYNCS, *RENAMES, *UNLINKS)


@dataclass(frozen=True)
class Kill:
    """SIGKILL when a thread of the process makes a system call for the n-th time; the call itself is not made."""

    call: str
    n: int = 1

    def to_option(self) -> str:
        """As strace has it."""
        return f"inject={self.call}:signal=SIGKILL:when={self.n}"


@dataclass(frozen=True)
class Fail:
    """The n-th such call of a thread fails, and with `lasting` every one after it: ENOSPC, EIO, EDQUOT, EROFS."""

    call: str
    n: int = 1
    error: str = "ENOSPC"
    lasting: bool = False

    def to_option(self) -> str:
        """As strace has it."""
        return f"inject={self.call}:error={self.error}:when={self.n}{'+' if self.lasting else ''}"


@dataclass(frozen=True)
class Slow:
    """Every such call takes so many seconds longer."""

    call: str
    seconds: float

    def to_option(self) -> str:
        """As strace has it."""
        return f"inject={self.call}:delay_enter={int(self.seconds * 1e6)}"


Fault = Kill | Fail | Slow


def options_of(faults: Sequence[Fault], calls: Sequence[str] = CALLS) -> tuple[str, ...]:
    """The options of strace that trace these calls and do this to them."""
    # Renames tell of commits; execve tells programs that the job starts (git) from its own threads, which a tracer
    # follows alike.
    shown = [*calls, *(fault.call for fault in faults), *RENAMES, "execve"]
    return ("-e", traced(shown), *(word for fault in faults for word in ("-e", fault.to_option())))
