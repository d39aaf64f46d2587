"""Which contents of a folder a power cut may leave, given the operations that a program had made. No input or output.

The model is that of POSIX, not of one file system: the bytes of a file are durable when the file was synced, and a name
(made, renamed or taken away) when the folder that holds it was. All that was not may be there or not, in any
combination, and bytes may be there in part, or as zeros. That covers file systems that promise more (order, or that a
sync of a file makes its name durable): their states are among these. A rename that was not synced has happened or has
not; from one folder to another, a sync of one of them makes durable what it says of that folder alone.
"""

import itertools
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
class Resize:
    """A file gets another length."""

    node: int
    size: int


@dataclass(frozen=True)
class Sync:
    """A file's bytes, or a folder's names, are durable: of the operations that had been made before it began.

    Attributes:
        node: file or folder.
        begun: how many operations had been made; None for all that stand before it.
    """

    node: int
    begun: int | None = None


@dataclass(frozen=True)
class Name:
    """A node gets one more name (a link), or in one step another one: `before` is (folder, name) of the old one."""

    folder: int
    name: str
    node: int
    before: tuple[int, str] | None = None


@dataclass(frozen=True)
class Exchange:
    """Two names, each (folder, name), change nodes in one step."""

    first: tuple[int, str]
    second: tuple[int, str]


@dataclass(frozen=True)
class Remove:
    """A name is taken away."""

    folder: int
    name: str


Operation = Make | Write | Resize | Sync | Name | Exchange | Remove
ROOT = 0
_MOST_EXHAUSTIVE = 10


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
        return hash(tuple(sorted((path, data is None, data or b"") for path, data in self.content.items())))


@dataclass(frozen=True)
class _Choice:
    """What of the pending operations a power cut leaves, by their numbers, and what becomes of bytes.

    Attributes:
        kept: operations that have happened.
        bytes_left: "whole"; "torn" where a part of each write is there; "zeros" where the length is, and nothing else.
    """

    kept: frozenset[int]
    bytes_left: str = "whole"


@dataclass
class _Disk:
    """What is durable, and what is pending (with its number among all operations), after some operations."""

    names: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    data: dict[int, bytes] = field(default_factory=dict)
    folders: set[int] = field(default_factory=lambda: {ROOT})
    pending: list[tuple[int, Operation]] = field(default_factory=list)


def crash_states(operations: Sequence[Operation], limit: int, seed: int = 0, begin: int = 0) -> Iterator[CrashState]:
    """States that a power cut may leave, each content once after each operation, about `limit` of them.

    After an operation: nothing of what is pending; all of it; all names and no bytes, or zeros, or parts; the newest
    alone; all but the oldest. Then every combination where there is room for all, or a random choice of them.

    Args:
        operations: what the program did, in its order; the folder itself is `ROOT`, and was empty.
        limit: how many states; cuts are chosen at random where there are more.
        seed: of the choice.
        begin: only cuts after at least so many operations.
    """
    rng = random.Random(seed)
    cuts = list(range(begin, len(operations) + 1))
    each = max(7, -(-limit // len(cuts)))
    if each * len(cuts) > limit:
        cuts = sorted(rng.sample(cuts, max(1, limit // each)))
    seen: set[tuple[int, int]] = set()
    for cut in cuts:
        disk = _disk_after(operations[:cut])
        for choice in _choices([one for _, one in disk.pending], each, rng):
            state = CrashState(cut, _content(disk, choice, rng))
            # The same content may be right after one operation and wrong after another, when a commit had returned.
            if (cut, state.key) not in seen:
                seen.add((cut, state.key))
                yield state


def _choices(pending: Sequence[Operation], most: int, rng: random.Random) -> Iterator[_Choice]:
    count = len(pending)
    everything = frozenset(range(count))
    yield _Choice(frozenset())
    if not count:
        return
    yield _Choice(everything)
    given = 2
    are_bytes = frozenset(n for n in everything if isinstance(pending[n], Write | Resize))
    if are_bytes:  # renamed into place, and empty: what delayed allocation leaves of files that were not synced
        yield _Choice(everything - are_bytes)
        yield _Choice(everything, "zeros")
        yield _Choice(everything, "torn")
        given += 3
    # The newest alone, and the oldest alone missing: what a program in the wrong order is caught by.
    yield _Choice(frozenset({count - 1}))
    yield _Choice(everything - {0})
    given += 2
    if count <= _MOST_EXHAUSTIVE and 2**count <= most:
        for size in range(count + 1):
            yield from (_Choice(frozenset(kept)) for kept in itertools.combinations(range(count), size))
        return
    for _ in range(given, most):
        kind = rng.randrange(3)
        if kind == 0:
            kept = frozenset({rng.randrange(count)})
        elif kind == 1:
            kept = everything - {rng.randrange(count)}
        else:
            kept = frozenset(one for one in range(count) if rng.random() < 0.5)
        yield _Choice(kept, rng.choice(("whole", "whole", "torn", "zeros")))


def _disk_after(operations: Sequence[Operation]) -> _Disk:
    disk = _Disk()
    for number, operation in enumerate(operations):
        if not isinstance(operation, Sync):
            disk.pending.append((number, operation))
            if isinstance(operation, Make) and operation.is_folder:
                disk.folders.add(operation.node)
            continue
        begun = number if operation.begun is None else operation.begun
        still = []
        for at, one in disk.pending:
            durable, left = _divided(one, operation.node) if at < begun else (None, one)
            if durable is not None:
                _apply(disk, durable)
            if left is not None:
                still.append((at, left))
        disk.pending = still
    return disk


def _divided(operation: Operation, synced: int) -> tuple[Operation | None, Operation | None]:
    """What of an operation a sync makes durable, and what of it stays pending."""
    match operation:
        case Write(node=node) | Resize(node=node):
            is_durable = node == synced
        case Name(folder=folder, before=(old, name)) if old != folder:
            if folder == synced:
                return Name(folder, operation.name, operation.node), Remove(old, name)
            if old == synced:
                return Remove(old, name), Name(folder, operation.name, operation.node)
            is_durable = False
        case Exchange(first=(first, _), second=(second, _)):
            is_durable = synced in (first, second)
        case Name(folder=folder) | Make(folder=folder) | Remove(folder=folder):
            is_durable = folder == synced
        case _:
            is_durable = False
    return (operation, None) if is_durable else (None, operation)


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
        case Exchange(first, second):
            one, other = (disk.names.setdefault(folder, {}).pop(name, None) for folder, name in (first, second))
            for (folder, name), moved in ((first, other), (second, one)):
                if moved is not None:
                    disk.names[folder][name] = moved
        case Remove(folder, name):
            disk.names.get(folder, {}).pop(name, None)
        case Resize(node, size):
            disk.data[node] = disk.data.get(node, b"")[:size].ljust(size, b"\0")
        case Write(node, offset, data):
            part = data[: int(len(data) * share)]
            part = bytes(len(part)) if zeros else part
            old_data = disk.data.get(node, b"").ljust(offset, b"\0")
            disk.data[node] = old_data[:offset] + part + old_data[offset + len(part) :]


def _content(disk: _Disk, choice: _Choice, rng: random.Random) -> dict[str, bytes | None]:
    after = _Disk({node: dict(names) for node, names in disk.names.items()}, dict(disk.data), disk.folders)
    for number, (_, operation) in enumerate(disk.pending):
        if number in choice.kept:
            share = rng.random() if choice.bytes_left == "torn" else 1.0
            _apply(after, operation, share, zeros=choice.bytes_left == "zeros")
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
