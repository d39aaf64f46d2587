"""Reads a part of a file, whole."""

import os


def read_fully(descriptor: int, offset: int, target: memoryview) -> None:
    """Fill `target` from `offset` on. Raises EOFError when the file ends before."""
    done = 0
    while done < len(target):
        count = os.preadv(descriptor, [target[done:]], offset + done)
        if not count:
            raise EOFError(f"it ends at byte {offset + done}")
        done += count
