"""What lies below an address of a store: the checkpoints of a run, told from one listing and their manifests."""

import errno
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from keepstep.errors import CouldNotLookError
from keepstep.plan import layout
from keepstep.plan.manifest import ForeignManifestError, Manifest, ManifestError, NewerManifestError, from_text
from keepstep.plan.resume import Condition, Found
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.files import OpenFile
from keepstep.storage.parallel import run_on
from keepstep.storage.plain import NotPlainError
from keepstep.storage.stores.base import Store, StoredObject

_MAX_MANIFEST = 256 * 1024 * 1024
# Small reads wait for the network: many at once.
_AT_ONCE = 24


class StoredFiles:
    """The files of one checkpoint in a store.

    Args:
        store: where.
        prefix: the checkpoint, relative to the store.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self.prefix = store, prefix

    def __str__(self) -> str:
        return f"{self._store.address}/{self.prefix}" if self.prefix else self._store.address

    @property
    def name(self) -> str:
        return str(self).rpartition("/")[2]

    def read(self, name: str, limit: int) -> bytes:
        try:
            return self._store.read(self._of(name), limit)
        except OSError as error:
            if error.errno == errno.EFBIG:
                raise NotPlainError(f"it is longer than {limit} bytes") from None
            raise

    def reread(self, name: str, size: int) -> bytes:
        return self.read(name, max(size, _MAX_MANIFEST))[:size]

    def open(self, name: str) -> OpenFile:
        return _StoredFile(self._store, self._of(name))

    def _of(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name


class _StoredFile:
    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name

    def read_into(self, offset: int, target: memoryview) -> None:
        self._store.read_into(self._name, offset, target)

    def reread(self, offset: int, size: int) -> bytes:
        data = bytearray(size)
        try:
            self._store.read_into(self._name, offset, memoryview(data))
        except EOFError:
            return b""
        return bytes(data)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint's folder in a store.

    Attributes:
        files: to read it.
        found: its step and condition.
        manifest: None where it has no valid one.
        sizes: bytes of each file that is there.
        modified: when its manifest was stored, in seconds since the epoch; 0 without one.
    """

    files: StoredFiles
    found: Found
    manifest: Manifest | None
    sizes: Mapping[str, int]
    modified: float = 0.0


@dataclass(frozen=True)
class StoredSurvey:
    """What lies below an address.

    Attributes:
        checkpoints: oldest first, complete or not.
        runs: names of folders that hold checkpoints themselves.
        foreign: first parts of the names of all else.
        notes: names below `.keepstep`.
    """

    checkpoints: tuple[StoredCheckpoint, ...] = ()
    runs: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def complete(self) -> tuple[StoredCheckpoint, ...]:
        return tuple(c for c in self.checkpoints if c.found.condition is Condition.COMPLETE)


@dataclass
class _Grouped:
    folders: dict[str, list[StoredObject]] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)
    foreign: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def survey_store(store: Store, prefix: str = "") -> StoredSurvey:
    """Look at all that lies below a prefix: one listing, and the manifest of each checkpoint.

    Raises:
        CouldNotLookError: it cannot be listed or read. That is never taken for an empty folder.
    """
    grouped = _group(_listed(store, prefix), prefix)
    found: list[StoredCheckpoint] = []
    run_on(
        min(_AT_ONCE, len(grouped.folders)),
        iter(grouped.folders.items()),
        lambda one: found.append(_inspect(store, _joined(prefix, one[0]), one[1])),
    )
    return StoredSurvey(
        tuple(sorted(found, key=lambda c: (c.found.step, c.files.name))),
        () if found else tuple(sorted(grouped.runs)),
        tuple(sorted(grouped.foreign)),
        tuple(grouped.notes),
    )


def inspect_stored(store: Store, prefix: str) -> StoredCheckpoint:
    """Judge one checkpoint by its manifest and a listing of its files. Raises as `survey_store`."""
    return _inspect(store, prefix, _listed(store, prefix))


def open_by_manifest(store: Store) -> StoredCheckpoint:
    """A checkpoint at an address that cannot be listed: its manifest says what belongs to it.

    Raises:
        CouldNotLookError: the manifest cannot be read.
    """
    files = StoredFiles(store, "")
    manifest, problem, condition = _read_manifest(files)
    sizes = {name: record.size for name, record in manifest.files.items()} if manifest else {}
    named = layout.any_step_of(files.name)
    step = named if named is not None else (manifest.step if manifest else 0)
    if manifest is not None:
        condition, problem = judge(manifest, step, sizes)
    return StoredCheckpoint(files, Found(step, condition, problem), manifest, sizes)


def _listed(store: Store, prefix: str) -> list[StoredObject]:
    try:
        return store.list(prefix)
    except OSError as error:
        where = _joined(store.address, prefix)
        raise CouldNotLookError(f"cannot look for checkpoints in {where}: {error.strerror or error}") from error


def _group(objects: Sequence[StoredObject], prefix: str) -> _Grouped:
    found = _Grouped()
    for one in objects:
        name = one.name[len(prefix) + 1 :] if prefix else one.name
        first, _, rest = name.partition("/")
        if first == layout.KEEPSTEP_FOLDER:
            found.notes.append(rest)
        elif rest and layout.any_step_of(first) is not None:
            found.folders.setdefault(first, []).append(one)
        elif any(layout.any_step_of(part) is not None for part in rest.split("/")[:-1]):
            found.runs.add(_run_of(name))
        else:
            found.foreign.add(first)
    return found


def _run_of(name: str) -> str:
    parts = name.split("/")
    return "/".join(parts[: next(i for i, part in enumerate(parts) if layout.any_step_of(part) is not None)])


def _inspect(store: Store, prefix: str, objects: Sequence[StoredObject]) -> StoredCheckpoint:
    files = StoredFiles(store, prefix)
    step = layout.any_step_of(files.name) or 0
    sizes = {one.name[len(prefix) + 1 :] if prefix else one.name: one.size for one in objects}
    modified = next((one.modified for one in objects if one.name.endswith(f"/{layout.MANIFEST}")), 0.0)
    if layout.MANIFEST not in sizes:
        return StoredCheckpoint(files, Found(step, Condition.INCOMPLETE, "it has no manifest"), None, sizes)
    manifest, problem, condition = _read_manifest(files)
    if manifest is not None:
        condition, problem = judge(manifest, step, sizes)
    return StoredCheckpoint(files, Found(step, condition, problem), manifest, sizes, modified)


def judge(manifest: Manifest, step: int, sizes: Mapping[str, int]) -> tuple[Condition, str]:
    """What a checkpoint with this manifest is, by the sizes of the files that are there; and what is wrong with it."""
    if manifest.step != step:
        return Condition.DAMAGED, f"its manifest is of step {manifest.step}"
    missing = [name for name in manifest.files if name not in sizes]
    if missing:
        return Condition.DAMAGED, f"{missing[0]} is missing" + (
            f", and {len(missing) - 1} more files" if len(missing) > 1 else ""
        )
    for name, record in manifest.files.items():
        if sizes[name] != record.size:
            return Condition.DAMAGED, f"{name} has {sizes[name]} bytes, not {record.size}"
    return Condition.COMPLETE, ""


def _read_manifest(files: StoredFiles) -> tuple[Manifest | None, str, Condition]:
    try:
        text = files.read(layout.MANIFEST, _MAX_MANIFEST).decode()
        return from_text(text, digest_of_bytes), "", Condition.COMPLETE
    except FileNotFoundError:
        return None, "it has no manifest", Condition.INCOMPLETE
    except (NotPlainError, UnicodeDecodeError):
        return None, "manifest: not text", Condition.DAMAGED
    except ForeignManifestError as error:
        return None, str(error), Condition.INCOMPLETE
    except NewerManifestError as error:
        return None, str(error), Condition.TOO_NEW
    except ManifestError as error:
        return None, f"manifest: {error}", Condition.DAMAGED
    except OSError as error:
        raise CouldNotLookError(f"cannot read {files}/{layout.MANIFEST}: {error.strerror or error}") from error


def _joined(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def steps_of(checkpoints: Collection[StoredCheckpoint]) -> list[int]:
    """Their steps, oldest first."""
    return sorted(c.found.step for c in checkpoints)
