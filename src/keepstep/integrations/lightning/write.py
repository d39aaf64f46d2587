"""Saves a checkpoint of Lightning's so that its name always means a whole one, the old or the new.

The order is what counts: bytes on disk, record on disk, name. At each point between, what has the name has a record.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from keepstep.errors import SaveError
from keepstep.integrations.lightning.cleaning import abandon, clean, held
from keepstep.plan.manifest import FileRecord, Manifest, to_text
from keepstep.storage import named_records as records
from keepstep.storage.digest import digest_file, digest_of_blocks, digest_of_bytes
from keepstep.storage.local import DurableFile, exchange, make_folders, remove_tree, sync_folder

_TRIES = 100


@dataclass(frozen=True)
class Facts:
    """What a record says of a checkpoint beside its files.

    Attributes:
        step: completed optimizer steps.
        world_size: ranks of the job.
        components: the parts that it holds.
        run: makes the run record (JSON) of the save with a number.
    """

    step: int
    world_size: int
    components: tuple[str, ...]
    run: Callable[[int], str]


class Sink:
    """What `torch.save` writes to. It remembers why a write failed: torch raises an error of its own in its place."""

    def __init__(self, file: DurableFile) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes; returns how many."""
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        return len(data)

    def flush(self) -> None:
        """Nothing: the file is written when it is closed."""


def write_file(path: Path, facts: Facts, write: Callable[[Sink], None]) -> None:
    """Write one file by `write` and let it take the name `path`.

    Raises:
        SaveError: the disk refused. What had the name before is untouched.
    """
    with explained(path), begun(path) as pending:
        with DurableFile(pending.scratch) as file:
            pending.hold()
            sink = Sink(file)
            try:
                write(sink)
            except RuntimeError as error:
                raise sink.error or error from error
        pending.note(facts, {records.CONTENT: FileRecord(file.size, digest_of_blocks(file.digests))})
        os.replace(pending.scratch, path)
        pending.settle()


class Pending:
    """A save under way. Its temporary file or folder is held, so that no other process takes it for a dead one's."""

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.number = path, number
        self.scratch = records.temporary_path(path, number)
        self._lock = -1

    def hold(self) -> None:
        """Hold the temporary file, which is there now."""
        self._lock = held(self.scratch)

    def note(self, facts: Facts, files: Mapping[str, FileRecord]) -> None:
        """Write the record. From then on the checkpoint may take its name."""
        manifest = Manifest(facts.step, self.number, facts.world_size, facts.components, files)
        _write_text(records.facts_path(self.path, self.number), facts.run(self.number))
        _write_text(records.record_path(self.path, self.number), to_text(manifest, digest_of_bytes))
        sync_folder(self.path.parent / records.FOLDER)

    def settle(self) -> None:
        """The checkpoint has its name: make that durable, then forget what had the name before."""
        sync_folder(self.path.parent)
        for number in records.numbers(self.path.parent).get(self.path.name, []):
            # One whose temporary file is there still belongs to a save that a signal, or another job, has cut in on.
            if number < self.number and not os.path.lexists(records.temporary_path(self.path, number)):
                records.drop(self.path, number)

    def commit_folder(self, facts: Facts) -> None:
        """Let the temporary folder, which others have filled, take its name."""
        files = {}
        for file in sorted(self.scratch.iterdir()):
            _sync_file(file)
            size, digests = digest_file(file)
            files[file.name] = FileRecord(size, digest_of_blocks(digests))
        sync_folder(self.scratch)
        self.note(facts, files)
        doomed = records.doomed_path(self.path, self.number)
        if not os.path.lexists(self.path):
            self.scratch.rename(self.path)
        elif exchange(self.scratch, self.path):
            sync_folder(self.path.parent)
            self.scratch.rename(doomed)
        else:
            # Without an exchange the name is free for a moment; what is older has names of its own.
            self.path.rename(doomed)
            self.scratch.rename(self.path)
        self.settle()
        remove_tree(doomed)

    def end(self, is_done: bool) -> None:
        """Let go of it; when it is not done, take away what it has written, but never what another one has."""
        if self._lock < 0:
            return
        try:
            if not is_done:
                abandon(self.path, self.number)
        finally:
            os.close(self._lock)


@contextmanager
def begun(path: Path) -> Iterator[Pending]:
    """A save with a number of its own, after what dead ones left is cleared away.

    Raises:
        OSError: the folder cannot be made or listed.
    """
    pending = begin(path)
    is_done = False
    try:
        yield pending
        is_done = True
    finally:
        pending.end(is_done)


def begin(path: Path) -> Pending:
    """The same; the caller ends it."""
    make_folders(path.parent)
    make_folders(path.parent / records.FOLDER)
    clean(path.parent)
    taken = [number for found in records.numbers(path.parent).values() for number in found]
    taken += [number for _, number, _ in records.under_way(path.parent)]
    return Pending(path, 1 + max(taken, default=0))


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Says of an error of the disk what it means for the checkpoints."""
    try:
        yield
    except OSError as error:
        raise SaveError(
            f"{path} could not be saved: {error}. What was saved before is untouched; make room, or mend the disk, and "
            'run the job again with ckpt_path="last"',
            rank=0,
            phase="writing",
        ) from error


def _write_text(place: Path, text: str) -> None:
    with DurableFile(place) as file:
        file.write(text.encode())


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
