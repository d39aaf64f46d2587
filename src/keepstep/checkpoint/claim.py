"""Takes a run's folder for this job alone, and makes sure that all ranks mean the same folder. Collective."""

import contextlib
import logging
import os
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keepstep.dist.agree import agreed
from keepstep.dist.world import World, host_name
from keepstep.errors import ResumeError, RunInUseError, SaveError
from keepstep.plan import layout
from keepstep.storage.lock import RunLock, acquire_lock

logger = logging.getLogger("keepstep")

# Network file systems cache listings for a moment.
_RETRY_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0)
_SHOWN = 4


class FolderClaim:
    """A run's folder, held by this job until `release`, or until nobody refers to it any more.

    Attributes:
        attempt: the number of this attempt of the run; it grows with each.
    """

    def __init__(self, attempt: int, lock: RunLock | None) -> None:
        self.attempt = attempt
        self._lock = lock
        self._release = weakref.finalize(self, lock.release) if lock is not None else None

    @property
    def is_lost(self) -> bool:
        """Whether another job was seen to hold the folder; only the main process looks."""
        return self._lock is not None and self._lock.is_lost

    def confirm(self) -> None:
        """Ask, on the main process, right before something in the folder is changed.

        Raises:
            RunInUseError: another job has taken the folder while this one gave no sign of life.
        """
        if self._lock is not None:
            self._lock.confirm()

    def release(self) -> None:
        """Give the folder back. May be called twice."""
        if self._release is not None:
            self._release()


@dataclass(frozen=True)
class _Seen:
    """What a rank sees of the main process's lock, and whether it could leave a file beside it."""

    host: str
    place: str  # a rank may call its folder otherwise
    sees_lock: bool
    problem: str = ""


def claim_folder(folder: Path, world: World, above: int = 0) -> FolderClaim:
    """Take a run's folder for this job. Collective.

    Args:
        folder: the run's folder.
        world: the ranks.
        above: the attempt gets a higher number than this; the main process's counts.

    Raises:
        RunInUseError: on all ranks: another job holds it.
        ResumeError: the ranks do not share the folder.
        SaveError: it cannot be made or written.
    """
    lock: RunLock | None = None
    refusal: RunInUseError | None = None
    with agreed(world, f"preparing to save to {folder}", SaveError):
        if world.rank == 0:
            try:
                lock = acquire_lock(folder, above=above)
            except RunInUseError as error:
                refusal = error
    refusal, number = world.broadcast((refusal, lock.number if lock is not None else 0))
    if refusal is not None:
        raise refusal
    claim = FolderClaim(number, lock)
    if world.size > 1:
        try:
            check_that_it_is_shared(folder, number, world, range(world.size))
        except BaseException:
            claim.release()
            raise
    return claim


def check_that_it_is_shared(folder: Path, number: int, world: World, called: Sequence[int]) -> None:
    """Each rank looks for the main process's lock and leaves a file that the main process looks for. Collective.

    Args:
        folder: the run's folder.
        number: of the lock.
        world: the ranks that must share it.
        called: how each of them is called in the error.

    Raises:
        ResumeError: on all of them.
    """
    told = world.gather(_leave_sign(folder, number, world.rank))
    left = [rank for rank, seen in enumerate(told) if rank and seen.sees_lock and not seen.problem]
    found = world.broadcast(_appearing(folder, number, left) if world.rank == 0 else [])
    with contextlib.suppress(OSError):
        if world.rank:
            _sign(folder, number, world.rank).unlink(missing_ok=True)
    apart = [rank for rank in range(1, world.size) if rank not in found]
    if not apart:
        return
    hosts = ", ".join(
        f"rank {called[rank]} ({told[rank].host}{_because(told[rank].problem)})" for rank in apart[:_SHOWN]
    )
    more = f" and {len(apart) - _SHOWN} more" if len(apart) > _SHOWN else ""
    raise ResumeError(
        f"the ranks do not share {told[0].place}: what rank {called[0]} ({told[0].host}) writes there and what "
        f"{hosts}{more} write is not in one folder. save_dir must lie on a file system that all nodes see",
        rank=called[apart[0]],
        phase="looking whether the ranks share the folder",
    )


def _leave_sign(folder: Path, number: int, rank: int) -> _Seen:
    if rank == 0:
        return _Seen(host_name(), str(folder), sees_lock=True)
    lock = folder / layout.KEEPSTEP_FOLDER / f"lock-{number}"
    if not _appears(lock):
        return _Seen(host_name(), str(folder), sees_lock=False)
    try:
        _sign(folder, number, rank).touch()
    except OSError as error:
        return _Seen(host_name(), str(folder), sees_lock=True, problem=str(error))
    return _Seen(host_name(), str(folder), sees_lock=True)


def _appears(path: Path) -> bool:
    return bool(_retried([path]))


def _appearing(folder: Path, number: int, ranks: Sequence[int]) -> list[int]:
    """Of these ranks those whose sign is there."""
    found = _retried([_sign(folder, number, rank) for rank in ranks])
    return [rank for rank in ranks if _sign(folder, number, rank) in found]


def _retried(paths: Sequence[Path]) -> set[Path]:
    """Which of these are there, at once or after some retries for all of them."""
    found: set[Path] = set()
    for pause in (0.0, *_RETRY_SECONDS):
        time.sleep(pause)
        found |= {path for path in paths if path not in found and os.path.lexists(path)}
        if len(found) == len(paths):
            break
    return found


def _sign(folder: Path, number: int, rank: int) -> Path:
    return folder / layout.KEEPSTEP_FOLDER / f"shared-{number}-{rank}"


def _because(problem: str) -> str:
    return f": {problem}" if problem else ""
