"""Reads what strace has written of a program, as the operations that it made below one folder."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from keepstep.testing.faults.crash_states import ROOT, Make, Name, Operation, Remove, Sync, Write

# What a recording needs: names of descriptors, times that several processes can be merged by, whole data.
STRACE_OPTIONS = ("-qq", "-y", "-ttt", "-xx", "-s", "100000000")
CALLS = (
    *("openat", "creat", "write", "pwrite64", "pwritev", "pwritev2", "ftruncate", "truncate", "fsync", "fdatasync"),
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"),
)
_LINE = re.compile(r"^(?:(?P<pid>\d+) +)?(?P<time>\d+\.\d+) (?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+)")
_DESCRIPTOR = re.compile(r"(?:AT_FDCWD|\d+)<(?P<path>[^>]*)>")
_STRING = re.compile(r'"(?P<data>(?:\\x[0-9a-f]{2})*)"')
_MADE = re.compile(r"O_CREAT")


class RecordingError(ValueError):
    """A line that tells of something which the model does not know."""


def read_recording(logs: Iterable[Path], folder: Path) -> list[Operation]:
    """The operations of all processes, in the order in which they were made.

    Args:
        logs: one log of strace for each process, made with `STRACE_OPTIONS`.
        folder: only what lies below it counts; it was empty when the recording began.

    Raises:
        RecordingError: a call below the folder is none that the model knows.
    """
    lines = []
    for log in logs:
        for text in log.read_text(errors="replace").splitlines():
            match = _LINE.match(text)
            if match is not None and int(match["result"]) >= 0:
                lines.append((float(match["time"]), match["name"], match["arguments"], match["result"]))
    lines.sort(key=lambda line: line[0])
    tree = _Tree(str(folder))
    return [one for _, name, arguments, result in lines for one in tree.read(name, arguments, int(result))]


class _Tree:
    """Names and nodes below the folder, as they stand after the lines that were read."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._nodes: dict[str, int] = {"": ROOT}
        self._ends: dict[int, int] = {}
        self._last = ROOT

    def read(self, name: str, arguments: str, result: int) -> Iterator[Operation]:
        paths = self._paths(arguments)
        match name:
            case "openat" | "creat":
                yield from self._open(paths, arguments)
            case "mkdir" | "mkdirat":
                yield from self._make(paths[-1], is_folder=True)
            case "write" | "pwrite64":
                yield from self._write(name, arguments, result)
            case "fsync" | "fdatasync":
                node = self._of_descriptor(arguments)
                if node is not None:
                    yield Sync(node)
            case "rename" | "renameat" | "renameat2":
                if "RENAME_EXCHANGE" in arguments:
                    raise RecordingError(f"an exchange of two names: {arguments}")
                yield from self._rename(paths[-2], paths[-1])
            case "link" | "linkat":
                yield from self._link(paths[-2], paths[-1])
            case "unlink" | "unlinkat" | "rmdir":
                yield from self._remove(paths[-1])
            case _:
                if any(path is not None for path in paths) or self._of_descriptor(arguments) is not None:
                    raise RecordingError(f"{name}({arguments})")

    def _open(self, paths: list[str | None], arguments: str) -> Iterator[Operation]:
        path = paths[-1] if paths else None
        if path is not None and _MADE.search(arguments) and path not in self._nodes:
            yield from self._make(path, is_folder=False)

    def _make(self, path: str | None, *, is_folder: bool) -> Iterator[Operation]:
        if path is None or not path:
            return
        self._last += 1
        self._nodes[path] = self._last
        yield Make(self._parent(path), path.rpartition("/")[2], self._last, is_folder)

    def _write(self, name: str, arguments: str, result: int) -> Iterator[Operation]:
        node = self._of_descriptor(arguments)
        if node is None:
            return
        found = _STRING.search(arguments)
        if found is None:
            raise RecordingError(f"data that was not recorded: {name}({arguments[:200]})")
        data = bytes.fromhex(found["data"].replace("\\x", ""))[:result]
        offset = int(arguments.rpartition(",")[2]) if name == "pwrite64" else self._ends.get(node, 0)
        self._ends[node] = max(self._ends.get(node, 0), offset + len(data))
        yield Write(node, offset, data)

    def _rename(self, old: str | None, new: str | None) -> Iterator[Operation]:
        if old is None and new is None:
            return
        if old is None or new is None:
            raise RecordingError(f"a rename across the folder's border: {old}, {new}")
        node = self._nodes[old]
        before = (self._parent(old), old.rpartition("/")[2])
        moved = {path: at for path, at in self._nodes.items() if path == old or path.startswith(f"{old}/")}
        for path in moved:
            del self._nodes[path]
        self._nodes |= {new + path[len(old) :]: at for path, at in moved.items()}
        yield Name(self._parent(new), new.rpartition("/")[2], node, before)

    def _link(self, old: str | None, new: str | None) -> Iterator[Operation]:
        if old is None or new is None:
            return
        self._nodes[new] = self._nodes[old]
        yield Name(self._parent(new), new.rpartition("/")[2], self._nodes[old])

    def _remove(self, path: str | None) -> Iterator[Operation]:
        if path:
            del self._nodes[path]
            yield Remove(self._parent(path), path.rpartition("/")[2])

    def _parent(self, path: str) -> int:
        return self._nodes[path.rpartition("/")[0]]

    def _paths(self, arguments: str) -> list[str | None]:
        """The paths among a call's arguments, relative to the folder; None for one that lies elsewhere."""
        base, paths = "", []
        for part in re.finditer(rf"{_DESCRIPTOR.pattern}|{_STRING.pattern}", arguments):
            if part["path"] is not None:
                base = _decoded(part["path"])
            elif part["data"] is not None:
                text = bytes.fromhex(part["data"].replace("\\x", "")).decode(errors="replace")
                paths.append(self._inside(text if text.startswith("/") else f"{base}/{text}"))
        return paths

    def _of_descriptor(self, arguments: str) -> int | None:
        found = _DESCRIPTOR.match(arguments)
        path = None if found is None else self._inside(_decoded(found["path"]))
        return None if path is None else self._nodes.get(path)

    def _inside(self, path: str) -> str | None:
        if path == self._root:
            return ""
        return path[len(self._root) + 1 :] if path.startswith(f"{self._root}/") else None


def _decoded(path: str) -> str:
    """With -xx a descriptor's path is written in hexadecimal as well."""
    text = path.removesuffix("(deleted)")
    return bytes.fromhex(text.replace("\\x", "")).decode(errors="replace") if text.startswith("\\x") else text
