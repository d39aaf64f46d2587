"""What becomes of a damaged checkpoint: it goes to quarantine with a report, and is never tried again. Collective."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keepstep.checkpoint.claim import FolderClaim
from keepstep.dist.world import World, host_name
from keepstep.errors import RunInUseError
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.storage.leases import held_steps
from keepstep.storage.quarantine import quarantine
from keepstep.storage.verify import Damage

logger = logging.getLogger("keepstep")


def put_away(
    folder: Path,
    claim: FolderClaim,
    world: World,
    step: int,
    damage: Sequence[Damage],
    following: int | None,
    naming: Naming = layout.NATIVE,
) -> None:
    """Move a damaged checkpoint out of the way. What cannot be moved stays, with a warning: it is passed over again.

    Args:
        folder: the run's folder.
        claim: the hold on it.
        world: the ranks; the main process acts.
        step: which checkpoint.
        damage: what is wrong with it.
        following: the step that is tried in its place; None when there is none.
        naming: how checkpoints are called there.
    """
    if world.rank == 0:
        path = folder / naming.checkpoint_name(step)
        try:
            claim.confirm()
            if step in held_steps(folder):
                logger.warning("%s is damaged, and stays where it is: a reader holds it", path)
            else:
                report = _report(path, step, claim.attempt, damage, following)
                target = quarantine(folder, step, claim.attempt, report, naming)
                logger.warning("%s lies in %s now, with a report beside it", path, target)
        except (OSError, RunInUseError) as error:
            logger.warning("%s is damaged, and could not be moved: %s", path, error)
    world.broadcast(None)


def _report(path: Path, step: int, attempt: int, damage: Sequence[Damage], following: int | None) -> dict[str, Any]:
    return {
        "checkpoint": path.name,
        "step": step,
        "found_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "found_by": {"host": host_name(), "attempt": attempt},
        "falls_back_to": following,
        "steps_lost": step - (following or 0),
        "damage": [
            {"file": one.file or None, "rank": _rank_of(one.file), "problem": one.problem, "tensors": list(one.keys)}
            for one in damage
        ],
    }


def _rank_of(file: str) -> int | None:
    """Which rank wrote a file, None for those of the main process."""
    number = file.removeprefix("__").split("_")[0].split(".")[0]
    return int(number) if file.startswith("__") and number.isdecimal() else None
