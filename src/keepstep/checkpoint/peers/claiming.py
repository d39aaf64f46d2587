"""Takes the folder of every host for this job, under one number. Collective."""

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from keepstep.checkpoint.claim import FolderClaim, check_that_it_is_shared
from keepstep.checkpoint.peers.hosts import HostWorld
from keepstep.dist.agree import agreed, told_by_all
from keepstep.dist.world import World
from keepstep.errors import ConfigError, ResumeError, RunInUseError, SaveError
from keepstep.plan import layout
from keepstep.plan.hosts import Hosts
from keepstep.storage.local import make_folders
from keepstep.storage.lock import RunLock, acquire_lock

T = TypeVar("T")
_ROUNDS = 10


def claim_folders(folder: Path, world: World, hosts: Hosts, above: int = 0) -> FolderClaim:
    """Take the run's folder on each host; its leader holds the lock.

    Args:
        folder: the run's folder, on each host another one.
        world: the ranks.
        hosts: of the job.
        above: the attempt gets a higher number than this.

    Raises:
        ConfigError: several hosts have one folder.
        RunInUseError: on all ranks: another job holds one of them.
        ResumeError: the ranks of one host do not share its folder.
        SaveError: one cannot be made or written.
    """
    _refuse_one_folder(folder, world, hosts)
    claim = _Taking(folder, world, hosts).take(above)
    try:
        with agreed(world, f"looking whether the ranks of each host share {folder}", ResumeError):
            own = hosts.ranks[hosts.of(world.rank)]
            check_that_it_is_shared(folder, claim.attempt, HostWorld(world, hosts), own)
    except BaseException:
        claim.release()
        raise
    return claim


class _Taking:
    """The locks of all hosts, until they have one number."""

    def __init__(self, folder: Path, world: World, hosts: Hosts) -> None:
        self._folder, self._world, self._leads = folder, world, hosts.leads(world.rank)
        self._lock: RunLock | None = None

    def take(self, above: int) -> FolderClaim:
        try:
            numbers = self._all(above)
            for _ in range(_ROUNDS):
                if min(numbers) == (top := max(numbers)):
                    return FolderClaim(top, self._lock)
                numbers = self._all(top - 1)
            text = (
                f"the hosts do not come to one number for {self._folder}: {sorted(set(numbers))}. Start the job again"
            )
            raise SaveError(text, rank=0, phase="taking the folders of the hosts")
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise

    def _all(self, above: int) -> list[int]:
        """Every leader's number, above this one. Raises the same on all ranks."""
        what = f"preparing to save to {self._folder}"
        told = told_by_all(self._world, what, lambda: self._one(above), SaveError)
        refusals = [text for _, text in told if text]
        if refusals:
            raise RunInUseError(refusals[0])
        return [number for number, _ in told if number]

    def _one(self, above: int) -> tuple[int, str]:
        if not self._leads:
            return 0, ""
        before = self._lock
        if before is not None and before.number > above:
            return before.number, ""
        try:
            self._lock = acquire_lock(self._folder, above=above)
        except RunInUseError as error:
            return 0, str(error)
        if before is not None:
            before.release()  # one user of it is enough
        return self._lock.number, ""


def _refuse_one_folder(folder: Path, world: World, hosts: Hosts) -> None:
    """Each leader leaves a sign in its folder, and looks for those of the others."""
    token = world.broadcast(secrets.token_hex(8))
    leads, own = hosts.leads(world.rank), hosts.of(world.rank)

    def sign(host: int) -> Path:
        return folder / layout.KEEPSTEP_FOLDER / f"host-{token}-{host}"

    def leave() -> None:
        make_folders(folder / layout.KEEPSTEP_FOLDER)
        sign(own).touch()

    def look() -> list[int]:
        return [host for host in range(len(hosts.ranks)) if os.path.lexists(sign(host))]

    seen: list[list[int]] = []
    try:
        _by_leaders(leave, leads, world, folder)
        seen = [found for found in _by_leaders(look, leads, world, folder) if found]
    finally:
        if leads:
            with contextlib.suppress(OSError):
                sign(own).unlink(missing_ok=True)
    shared = next((found for found in seen if len(found) > 1), None)
    if shared is not None:
        names = " and ".join(hosts.names[host] for host in shared[:2])
        raise ConfigError(
            f"checkpointing.peer_copies: {names} see one folder {folder}. Copies on peers are for a save_dir that each "
            "machine has for itself; with one that is shared set peer_copies: 0"
        )


def _by_leaders(work: Callable[[], T], leads: bool, world: World, folder: Path) -> list[T | None]:
    return told_by_all(world, f"preparing to save to {folder}", lambda: work() if leads else None, SaveError)
