"""Which contents of a folder a power cut may leave, given the operations that a program had made. No input or output.

The model is that of POSIX, not of one file system: the bytes of a file are durable when the file was synced, and a name
(made, renamed or taken away) when the folder that holds it was. All that was not may be there or not, in any
combination, and bytes may be there in part, or as zeros.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Make:
    """A file or folder gets its first name."""

    folder: int
    name: str
    node: int
    is_folder: bool = False


@dataclass(frozen=True)
class Write:
    """Bytes of a file."""

    node: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Sync:
    """A file's bytes, or a folder's names, are durable."""

    node: int


@dataclass(frozen=True)
class Name:
    """A node gets one more name (a link), or in one step another one: `before` is (folder, name) of the old one."""

    folder: int
    name: str
    node: int
    before: tuple[int, str] | None = None


@dataclass(frozen=True)
class Remove:
    """A name is taken away."""

    folder: int
    name: str


Operation = Make | Write | Sync | Name | Remove
ROOT = 0


@dataclass(frozen=True)
class CrashState:
    """What lies in the folder after a power cut: for each path the bytes of a file, None for a folder.

    Attributes:
        done: how many operations had been made.
    """

    done: int
    content: dict[str, bytes | None]

    @property
    def key(self) -> int:
        """Equal for states with the same content."""
        return hash(tuple(sorted((path, data) for path, data in self.content.items() if data is not None)))


@dataclass
class _Disk:
    """What is durable, and what is pending, after some operations."""

    names: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    data: dict[int, bytes] = field(default_factory=dict)
    folders: set[int] = field(default_factory=lambda: {ROOT})
    pending: list[Operation] = field(default_factory=list)


def crash_states(operations: Sequence[Operation], limit: int, seed: int = 0) -> Iterator[CrashState]:
    """States that a power cut may leave, each content once, at most `limit` of them.

    After each operation: nothing of what is pending, all of it, all but one, one alone, and random parts of it.

    Args:
        operations: what the program did, in its order; the folder itself is `ROOT`, and was empty.
        limit: how many states; cuts are spread evenly where there are more.
        seed: of the choice.
    """
    rng = random.Random(seed)
    cuts = list(range(len(operations) + 1))
    each = max(4, -(-limit // len(cuts)))
    if each * len(cuts) > limit:
        cuts = sorted(rng.sample(cuts, max(1, limit // each)))
    seen: set[tuple[int, int]] = set()
    for cut in cuts:
        disk = _disk_after(operations[:cut])
        for kept in _choices(len(disk.pending), each, rng):
            state = CrashState(cut, _content(disk, kept, rng))
            # The same content may be right after one operation and wrong after another, when a commit had returned.
            if (cut, state.key) not in seen:
                seen.add((cut, state.key))
                yield state


def _choices(count: int, most: int, rng: random.Random) -> Iterator[frozenset[int]]:
    everything = frozenset(range(count))
    yield frozenset()
    if not count:
        return
    yield everything
    given = 2
    # The newest alone, and the oldest alone missing: what a program in the wrong order is caught by.
    for kept in (frozenset({count - 1}), everything - {0}):
        yield kept
        given += 1
    while given < most:
        given += 1
        kind = rng.randrange(3)
        if kind == 0:
            yield frozenset({rng.randrange(count)})
        elif kind == 1:
            yield everything - {rng.randrange(count)}
        else:
            yield frozenset(one for one in range(count) if rng.random() < 0.5)


def _disk_after(operations: Sequence[Operation]) -> _Disk:
    disk = _Disk()
    for operation in operations:
        if not isinstance(operation, Sync):
            disk.pending.append(operation)
            if isinstance(operation, Make) and operation.is_folder:
                disk.folders.add(operation.node)
            continue
        still = []
        for one in disk.pending:
            if _is_made_durable(one, operation.node):
                _apply(disk, one)
            else:
                still += _left_of(one, operation.node)
                if still and still[-1] is not one:
                    _apply(disk, Name(operation.node, one.name, one.node))  # type: ignore[union-attr]
        disk.pending = still
    return disk


def _is_made_durable(operation: Operation, synced: int) -> bool:
    match operation:
        case Write(node=node):
            return node == synced
        case Name(folder=folder, before=None) | Make(folder=folder) | Remove(folder=folder):
            return folder == synced
        case Name(folder=folder, before=(old, _)):
            return folder == synced and old == synced
    return False


def _left_of(operation: Operation, synced: int) -> list[Operation]:
    """A rename from one folder to another is durable in each of them by itself."""
    if isinstance(operation, Name) and operation.before is not None and operation.before[0] != operation.folder:
        if operation.folder == synced:
            return [Remove(*operation.before)]
        if operation.before[0] == synced:
            return [operation]
    return [operation]


def _apply(disk: _Disk, operation: Operation, share: float = 1.0, *, zeros: bool = False) -> None:
    match operation:
        case Make(folder, name, node, is_folder):
            disk.names.setdefault(folder, {})[name] = node
            if is_folder:
                disk.names.setdefault(node, {})
            else:
                disk.data.setdefault(node, b"")
        case Name(folder, name, node, before):
            if before is not None:
                old = disk.names.get(before[0], {})
                if old.get(before[1]) == node:
                    del old[before[1]]
            disk.names.setdefault(folder, {})[name] = node
        case Remove(folder, name):
            disk.names.get(folder, {}).pop(name, None)
        case Write(node, offset, data):
            part = data[: int(len(data) * share)]
            part = bytes(len(part)) if zeros else part
            old_data = disk.data.get(node, b"").ljust(offset, b"\0")
            disk.data[node] = old_data[:offset] + part + old_data[offset + len(part) :]


def _content(disk: _Disk, kept: frozenset[int], rng: random.Random) -> dict[str, bytes | None]:
    after = _Disk(
        {node: dict(names) for node, names in disk.names.items()}, dict(disk.data), disk.folders, disk.pending
    )
    torn = rng.random() < 0.3
    for number, operation in enumerate(disk.pending):
        if number in kept:
            share = rng.random() if torn else 1.0
            _apply(after, operation, share, zeros=torn and rng.random() < 0.3)
    content: dict[str, bytes | None] = {}

    def walk(folder: int, path: str) -> None:
        for name, node in after.names.get(folder, {}).items():
            place = f"{path}{name}"
            if node in disk.folders:
                content[place] = None
                walk(node, f"{place}/")
            else:
                content[place] = after.data.get(node, b"")

    walk(ROOT, "")
    return content
