"""Commits a checkpoint whose files somebody else's code writes (a Trainer, an Accelerator): the save path around them.

The order is that of `save.py`; only the writing is left to others, and every file is digested and synced after it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from keepstep.checkpoint.save import SaveRequest, apply_retention, discard, phase_of, prepare, seal
from keepstep.dist.agree import agreed, told_to_main
from keepstep.dist.world import World
from keepstep.errors import SaveError
from keepstep.plan.sharing import share_files
from keepstep.storage.folder_files import digest_and_sync, files_below
from keepstep.storage.local import sync_folder


@dataclass(frozen=True)
class SavedFolder:
    """What a save did.

    Attributes:
        size: bytes of all files; 0 but on the main process.
        write_seconds: others' writing; `seconds` is all of it, retention left out.
    """

    step: int
    size: int
    write_seconds: float
    seconds: float


def save_folder(
    request: SaveRequest,
    write: Callable[[Path], None],
    world: World,
    complete: Callable[[Path], None] = lambda path: None,
    size: int = 0,
) -> SavedFolder:
    """Let files be written into a temporary folder, and commit that. Collective.

    Args:
        request: what is saved where.
        write: called on all ranks with the folder that becomes the checkpoint; may hold collectives of its own.
        complete: called on the main process when all ranks have written; it may add and change files.
        size: bytes that are known to be needed, so that a full disk is told of before anything is written.

    Raises:
        SaveError: on every rank, naming the rank that failed. Nothing was committed.
    """
    started = time.monotonic()
    with discarding(request, world):
        begin_folder(request, world, size)
        with agreed(world, phase_of(request, "writing"), SaveError):
            write(request.content)
        return end_folder(request, world, started, time.monotonic() - started, complete)


def begin_folder(request: SaveRequest, world: World, size: int = 0) -> None:
    """Make the temporary folder. Collective. Raises SaveError."""
    with agreed(world, phase_of(request, "preparing"), SaveError):
        if world.rank == 0:
            prepare(request, size)
            request.content.mkdir(exist_ok=True)


def end_folder(
    request: SaveRequest,
    world: World,
    started: float,
    write_seconds: float,
    complete: Callable[[Path], None] = lambda path: None,
) -> SavedFolder:
    """Commit what lies in the temporary folder, and delete what retention gives up. Collective. Raises SaveError."""
    size = commit_folder(request, world, complete)
    ended = time.monotonic()
    if world.rank == 0:
        apply_retention(request)
    # Nobody goes on before the folder is as it will be.
    world.broadcast(None)
    return SavedFolder(request.step, size, write_seconds, ended - started)


@contextmanager
def discarding(request: SaveRequest, world: World) -> Iterator[None]:
    """Delete the temporary folder where the body fails."""
    try:
        yield
    except BaseException:
        if world.rank == 0:
            discard(request.temporary)
        raise


def commit_folder(request: SaveRequest, world: World, complete: Callable[[Path], None] = lambda path: None) -> int:
    """Digest, sync and commit what lies in the temporary folder. Collective. Returns its bytes on the main process."""
    with agreed(world, phase_of(request, "completing"), SaveError):
        found: list[tuple[str, int]] = []
        if world.rank == 0:
            complete(request.content)
            found = files_below(request.content)
    shares = share_files(world.broadcast(found), world.size)
    records = told_to_main(
        world,
        phase_of(request, "digesting and syncing"),
        lambda: digest_and_sync(request.content, shares[world.rank]),
        SaveError,
    )
    files = {name: record for part in records for name, record in part.items()}
    with agreed(world, phase_of(request, "committing"), SaveError):
        if world.rank == 0:
            for folder in _folders_below(request.content):
                sync_folder(folder)
            seal(request, files, world.size)
            if request.inner:
                discard(request.temporary)
    return sum(record.size for record in files.values())


def _folders_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_dir()]
