"""The folders of all hosts of a job, and which kind of folders a configuration asks for."""

import logging
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path

from keepstep.checkpoint.claim import FolderClaim
from keepstep.checkpoint.folders import Folders, Judge, SharedFolders
from keepstep.checkpoint.peers.assembling import Assembling
from keepstep.checkpoint.peers.claiming import claim_folders
from keepstep.checkpoint.peers.copying import FolderPerHost
from keepstep.checkpoint.peers.hosts import find_hosts
from keepstep.checkpoint.resume import DamagePolicy
from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.dist.wire import Wire
from keepstep.dist.world import World

logger = logging.getLogger("keepstep")


class HostFolders:
    """Each host has a folder of its own, of the same path. Made on all ranks together (see `Folders`).

    Args:
        world: the ranks.
        timeout: how long a rank waits for bytes of another one.
    """

    def __init__(self, world: World, timeout: timedelta) -> None:
        self._world, self._hosts = world, find_hosts(world)
        self._wire = Wire(timeout) if len(self._hosts.ranks) > 1 else None
        self.placing = FolderPerHost(self._hosts, self._wire)
        self.has_copies = self._wire is not None
        if self._wire is None and world.rank == 0:
            logger.warning("checkpointing.peer_copies: all ranks are on one host, so there is no peer to hold a copy")

    def take(self, folder: Path, world: World, above: int) -> FolderClaim:
        return claim_folders(folder, world, self._hosts, above)

    def assemble(
        self, folder: Path, requested: int | None, take: Callable[[], FolderClaim], judge: Judge, policy: DamagePolicy
    ) -> Collection[int] | None:
        step = Assembling(folder, self._world, self._hosts, self._wire, policy).bring(requested, take, judge)
        return () if step is None else (step,)

    def policy(self, policy: DamagePolicy) -> DamagePolicy:
        # Every file was verified before. What is found bad since is found again by the next start, which takes it from
        # another host: nothing is moved, since the ranks do not know on which host it is.
        return DamagePolicy(policy.stop, policy.full)


def folders_of(config: CheckpointingConfig, world: World) -> Folders:
    """The kind of folders that a configuration asks for. Collective."""
    if not config.peer_copies:
        return SharedFolders()
    return HostFolders(world, timedelta(seconds=config.timeout_seconds))
