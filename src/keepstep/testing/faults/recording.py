"""Turns what strace has written of a program into the operations that it made below one folder."""

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from keepstep.testing.faults.calls import Call, read_calls, traced
from keepstep.testing.faults.crash_states import ROOT, Exchange, Make, Name, Operation, Remove, Resize, Sync, Write
from keepstep.testing.faults.faults import CALLS

# Names of descriptors; times that processes can be merged by, and how long each call took; whole data.
STRACE_OPTIONS = (
    *("-qq", "-y", "-ttt", "-T", "-xx", "-s", "100000000"),
    *("-e", traced([*CALLS, "creat", "truncate", "lseek", "writev", "splice"])),
)
_DESCRIPTOR = re.compile(r"(?:AT_FDCWD|\d+)<(?P<path>[^>]*)>")
_WORKING = re.compile(r"AT_FDCWD<(?P<path>[^>]*)>")
_NUMBER = re.compile(r"\d+")
_STRING = re.compile(r'"(?P<data>(?:\\x[0-9a-f]{2})*)"')
_KEPT = re.compile(r"\b(O_APPEND|O_TRUNC|O_CREAT)\b")


class RecordingError(ValueError):
    """A line that tells of something which the model does not know."""


def read_recording(logs: Iterable[Path], folder: Path) -> list[Operation]:
    """The operations of all processes, in the order in which they were complete.

    Args:
        logs: one log of strace for each process, made with `STRACE_OPTIONS`.
        folder: only what lies below it counts; it was empty when the recording began.

    Raises:
        RecordingError: a call below the folder is none that the model knows, or of a file made before.
    """
    calls = [(number, call) for number, log in enumerate(logs) for call in _in_turn(read_calls(log))]
    calls = [(number, call) for number, call in calls if call.result is not None and call.result >= 0]
    calls.sort(key=lambda one: one[1].ended)
    tree = _Tree(str(folder))
    for number, call in reversed(calls):  # where each process was at first
        tree.note_place(number, call)
    operations: list[Operation] = []
    ends: list[float] = []
    for process, call in calls:
        for one in tree.read(process, call):
            if isinstance(one, Sync):  # what another thread did meanwhile is none of its business
                one = replace(one, begun=bisect_right(ends, call.begun))
            operations.append(one)
            ends.append(call.ended)
    return operations


def _in_turn(calls: list[Call]) -> list[Call]:
    """Moments and durations are of two clocks: by their sum a call may seem to last into the thread's next one."""
    found, next_begun = [], dict[int, float]()
    for call in reversed(calls):
        found.append(replace(call, ended=min(call.ended, next_begun.get(call.thread, call.ended))))
        next_begun[call.thread] = call.begun
    return found[::-1]


class _Tree:
    """Names, nodes and positions in files below the folder, as they stand after the calls that were read."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._nodes: dict[str, int] = {"": ROOT}
        self._sizes: dict[int, int] = {}
        # By process and descriptor; None where every write goes to the file's end.
        self._positions: dict[tuple[int, int], int | None] = {}
        self._working: dict[int, str] = {}
        self._last = ROOT

    def note_place(self, process: int, call: Call) -> None:
        """Calls that take a descriptor tell where the process is; to others (rename) a path may be relative to that."""
        found = _WORKING.search(call.arguments)
        if found is not None:
            self._working[process] = _decoded(found["path"])

    def read(self, process: int, call: Call) -> Iterator[Operation]:
        self.note_place(process, call)
        try:
            yield from self._read(process, call)
        except KeyError as error:
            raise RecordingError(f"{call.name}({call.arguments[:300]}): {error} was there before") from error

    def _read(self, process: int, call: Call) -> Iterator[Operation]:
        arguments, result = call.arguments, call.result or 0
        paths = self._paths(process, arguments)
        match call.name:
            case "openat" | "creat":
                flags = {"O_CREAT", "O_TRUNC"} if call.name == "creat" else set(_KEPT.findall(arguments))
                yield from self._open(paths[-1] if paths else None, flags, (process, result))
            case "mkdir" | "mkdirat":
                yield from self._make(paths[-1], is_folder=True)
            case "write" | "pwrite64":
                yield from self._write(process, call)
            case "lseek":
                self._positions[process, self._descriptor(arguments)] = result
            case "ftruncate":
                node = self._of_descriptor(arguments)
                if node is not None:
                    yield self._resize(node, int(arguments.rpartition(",")[2]))
            case "truncate":
                if paths[0] is not None:
                    yield self._resize(self._nodes[paths[0]], int(arguments.rpartition(",")[2]))
            case "fsync" | "fdatasync":
                node = self._of_descriptor(arguments)
                if node is not None:
                    yield Sync(node)
            case "rename" | "renameat" | "renameat2":
                yield from self._rename(paths[-2], paths[-1], is_exchange="RENAME_EXCHANGE" in arguments)
            case "link" | "linkat":
                yield from self._link(paths[-2], paths[-1])
            case "unlink" | "unlinkat" | "rmdir":
                yield from self._remove(paths[-1])
            case "sync_file_range" | "syncfs":
                pass  # The first makes nothing durable. The second would: not to count it errs on the safe side.
            case _:
                places = [self._inside(_decoded(one["path"])) for one in _DESCRIPTOR.finditer(arguments)]
                if any(place is not None for place in (*paths, *places)):
                    raise RecordingError(f"{call.name}({arguments[:300]})")

    def _open(self, path: str | None, flags: set[str], opened: tuple[int, int]) -> Iterator[Operation]:
        if path is None:
            return
        if "O_CREAT" in flags and path not in self._nodes:
            yield from self._make(path, is_folder=False)
        elif "O_TRUNC" in flags:
            yield self._resize(self._nodes[path], 0)
        self._positions[opened] = None if "O_APPEND" in flags else 0

    def _make(self, path: str | None, *, is_folder: bool) -> Iterator[Operation]:
        if not path:
            return
        parent = self._parent(path)
        self._last += 1
        self._nodes[path] = self._last
        yield Make(parent, path.rpartition("/")[2], self._last, is_folder)

    def _resize(self, node: int, size: int) -> Resize:
        self._sizes[node] = size
        return Resize(node, size)

    def _write(self, process: int, call: Call) -> Iterator[Operation]:
        node = self._of_descriptor(call.arguments)
        if node is None:
            return
        found = _STRING.search(call.arguments)
        if found is None:
            raise RecordingError(f"data that was not recorded: {call.name}({call.arguments[:200]})")
        data = bytes.fromhex(found["data"].replace("\\x", ""))[: call.result]
        if call.name == "pwrite64":
            offset = int(call.arguments.rpartition(",")[2])
        else:
            opened = process, self._descriptor(call.arguments)
            position = self._positions[opened]
            offset = self._sizes.get(node, 0) if position is None else position
            if position is not None:
                self._positions[opened] = offset + len(data)
        self._sizes[node] = max(self._sizes.get(node, 0), offset + len(data))
        yield Write(node, offset, data)

    def _rename(self, old: str | None, new: str | None, *, is_exchange: bool) -> Iterator[Operation]:
        if old is None and new is None:
            return
        if old is None or new is None:
            raise RecordingError(f"a rename across the folder's border: {old}, {new}")
        first, second = self._place(old), self._place(new)
        node = self._nodes[old]
        moved, replaced = self._below(old), self._below(new)
        for path in (*moved, *replaced):
            del self._nodes[path]
        self._nodes |= {new + path[len(old) :]: at for path, at in moved.items()}
        if is_exchange:
            self._nodes |= {old + path[len(new) :]: at for path, at in replaced.items()}
            yield Exchange(first, second)
        else:
            yield Name(*second, node, first)

    def _link(self, old: str | None, new: str | None) -> Iterator[Operation]:
        if old is None or new is None:
            return
        self._nodes[new] = self._nodes[old]
        yield Name(*self._place(new), self._nodes[old])

    def _remove(self, path: str | None) -> Iterator[Operation]:
        if path:
            del self._nodes[path]
            yield Remove(*self._place(path))

    def _below(self, path: str) -> dict[str, int]:
        return {one: at for one, at in self._nodes.items() if one == path or one.startswith(f"{path}/")}

    def _place(self, path: str) -> tuple[int, str]:
        return self._parent(path), path.rpartition("/")[2]

    def _parent(self, path: str) -> int:
        return self._nodes[path.rpartition("/")[0]]

    def _paths(self, process: int, arguments: str) -> list[str | None]:
        """The paths among a call's arguments, relative to the folder; None for one that lies elsewhere."""
        base, paths = self._working.get(process, ""), []
        for part in re.finditer(rf"{_DESCRIPTOR.pattern}|{_STRING.pattern}", arguments):
            if part["path"] is not None:
                base = _decoded(part["path"])
            elif part["data"] is not None:
                text = bytes.fromhex(part["data"].replace("\\x", "")).decode(errors="replace")
                paths.append(self._inside(os.path.normpath(text if text.startswith("/") else f"{base}/{text}")))
        return paths

    def _descriptor(self, arguments: str) -> int:
        found = _NUMBER.match(arguments)
        return int(found[0]) if found else -1

    def _of_descriptor(self, arguments: str) -> int | None:
        found = _DESCRIPTOR.match(arguments)
        path = None if found is None else self._inside(_decoded(found["path"]))
        if found is None or path is None or arguments.startswith("(deleted)", found.end()):
            return None
        return self._nodes[path]

    def _inside(self, path: str) -> str | None:
        if path == self._root:
            return ""
        return path[len(self._root) + 1 :] if path.startswith(f"{self._root}/") else None


def _decoded(path: str) -> str:
    """With -xx a descriptor's path is written in hexadecimal as well."""
    text = path.removesuffix("(deleted)")
    return bytes.fromhex(text.replace("\\x", "")).decode(errors="replace") if text.startswith("\\x") else text
