"""The other process of `keepstep doctor`: watches a name come to be. Run as a script; needs nothing but Python.

One watch for each line of JSON on stdin: {"path", "files", "size", "seconds"}, where `files` is 0 for a file of `size`
bytes and else the number of such files in a folder. It answers "watching" after its first look, and then one line of
JSON: {"seen": monotonic seconds of the first look that found all, or null, "torn": whether less was seen before}.
"""

import json
import os
import sys
import time


def watch(path: str, files: int, size: int, seconds: float) -> dict[str, object]:
    """Look again and again until everything is there."""
    parent, name = os.path.split(path)
    deadline, torn, is_first = time.monotonic() + seconds, False, True
    while True:
        now = time.monotonic()
        listed = name in os.listdir(parent)
        if is_first:
            print("watching", flush=True)
            is_first = False
        if listed and _is_whole(path, files, size):
            return {"seen": now, "torn": torn}
        torn = torn or listed
        if now > deadline:
            return {"seen": None, "torn": torn}
        time.sleep(0.001)


def _is_whole(path: str, files: int, size: int) -> bool:
    try:
        if not files:
            return _has_content(path, size)
        names = os.listdir(path)
        return len(names) == files and all(_has_content(os.path.join(path, name), size) for name in names)
    except OSError:
        return False


def _has_content(path: str, size: int) -> bool:
    with open(path, "rb") as file:
        data = file.read()
    return data == b"k" * size


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(watch(**json.loads(line))), flush=True)
