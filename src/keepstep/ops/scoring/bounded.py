"""Becomes another program with lower priority, one that does not outlive who asked for it.

Run as a script, without the rest of keepstep: `python bounded.py NICE PARENT COMMAND...`
"""

import contextlib
import ctypes
import os
import signal
import sys

_SET_DEATH_SIGNAL = 1
_NOT_FOUND, _NOT_RUN = 127, 126


def main(nice: int, parent: int, command: list[str]) -> None:
    """Replace this process by `command`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it died before
            os._exit(_NOT_RUN)
    with contextlib.suppress(OSError):
        os.nice(nice)
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        print(f"{command[0]}: there is no such program", file=sys.stderr)
        os._exit(_NOT_FOUND)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(_NOT_RUN)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
