"""Says once, at a start, when a run saves to what is lost with its machine."""

import logging
from pathlib import Path

from keepstep.dist.world import World
from keepstep.storage.mount import volatile

logger = logging.getLogger("keepstep")


def warn_if_volatile(folder: Path, world: World, *, has_mirror: bool) -> None:
    """Warn, on the main process, about a folder that goes with the machine and is kept nowhere else.

    Args:
        folder: where the run saves.
        world: the ranks.
        has_mirror: whether checkpoints are copied to another place too.
    """
    if world.rank != 0 or has_mirror:
        return
    if found := volatile(folder):
        logger.warning(
            "save_dir (%s) lies on %s, which goes with the machine, and there is no mirror: a reclaimed machine costs "
            "the run. Set checkpointing.mirror, or save to a mounted drive",
            folder,
            found,
        )
