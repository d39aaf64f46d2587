"""Where the checkpoints of a run lie: in one folder that all ranks share, or in one for each host."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from keepstep.checkpoint.claim import FolderClaim, claim_folder
from keepstep.checkpoint.resume import DamagePolicy
from keepstep.checkpoint.save import ONE_FOLDER, Placing
from keepstep.dist.world import World

# Given step, place and run record of a checkpoint that is about to be brought: raises where that must not be.
Judge = Callable[[int, str, Mapping[str, Any]], None]


class Folders(Protocol):
    """What differs between the two kinds."""

    @property
    def placing(self) -> Placing:
        """Where the files of a save go."""

    @property
    def has_copies(self) -> bool:
        """Whether what lies on one machine lies on another one as well."""

    def take(self, folder: Path, world: World, above: int) -> FolderClaim:
        """Take the run's folder for this job. Collective. Raises as `claim_folder`."""

    def assemble(
        self, folder: Path, requested: int | None, take: Callable[[], FolderClaim], judge: Judge, policy: DamagePolicy
    ) -> Collection[int] | None:
        """Bring what a resume needs into every rank's folder. Collective.

        Returns:
            The steps that may be resumed; None: those that are found there.
        """

    def policy(self, policy: DamagePolicy) -> DamagePolicy:
        """What a resume does about damage that it finds."""


class SharedFolders:
    """One folder on a file system that all ranks see."""

    placing: Placing = ONE_FOLDER
    has_copies = False

    def take(self, folder: Path, world: World, above: int) -> FolderClaim:
        return claim_folder(folder, world, above)

    def assemble(
        self, folder: Path, requested: int | None, take: Callable[[], FolderClaim], judge: Judge, policy: DamagePolicy
    ) -> Collection[int] | None:
        return None

    def policy(self, policy: DamagePolicy) -> DamagePolicy:
        return policy
