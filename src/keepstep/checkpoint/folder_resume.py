"""Chooses and verifies a checkpoint whose files somebody else's code loads: the resume path up to the load."""

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

from keepstep.checkpoint.resume import DamagePolicy, Resumed, look, refuse, warn_of_ignored
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import DamagedCheckpointError, ResumeError
from keepstep.plan.layout import Naming
from keepstep.plan.resume import Condition, Start
from keepstep.plan.sharing import share_files
from keepstep.storage.survey import inspect
from keepstep.storage.verify import Damage, verify_files

logger = logging.getLogger("keepstep")


def choose(
    folder: Path,
    naming: Naming,
    world: World,
    requested: int | None = None,
    policy: DamagePolicy | None = None,
    guard: Callable[[int], None] = lambda step: None,
) -> Resumed:
    """The newest committed checkpoint of which every byte is as it was written, or the requested one. Collective.

    Args:
        folder: the run's folder.
        naming: how checkpoints are called there.
        world: the ranks; they share the reading.
        requested: the step to take and no other; None for the newest.
        policy: what is done about damaged ones.
        guard: called on all ranks with the step that is about to be taken; raises where that must not be.

    Returns:
        Its step, folder and world; step 0 and no folder where there surely is none.

    Raises:
        CheckpointNotFoundError: the requested step is not there.
        DamagedCheckpointError: checkpoints are there, and none is good, or the newest is not and the policy is to stop.
        ResumeError: a rank could not look or read.
    """
    policy = policy or DamagePolicy()
    decision = look(folder, world, requested, naming)
    warn_of_ignored(folder, decision, world, naming)
    refuse(folder, decision)
    if decision.start is Start.FRESH:
        return Resumed(0, None)
    problems: list[str] = []
    for one in decision.damaged:
        problems.append(f"{folder / naming.checkpoint_name(one.step)} is damaged: {one.problem}")
        _may_go_on(policy, problems)
        policy.put_away(one.step, [Damage("", one.problem)], decision.candidates[0])
    pending, repaired = deque(decision.candidates), set[int]()
    while pending:
        step = pending.popleft()
        path = folder / naming.checkpoint_name(step)
        guard(step)
        damage, world_size = verify_together(path, step, world)
        if not damage:
            return Resumed(step, path, world_size)
        text = f"{path} is damaged: {damage[0]}" + (f" and {len(damage) - 1} more places" if len(damage) > 1 else "")
        problems.append(text)
        _may_go_on(policy, problems)
        following = next(iter(pending), None)
        policy.put_away(step, damage, following)
        if step not in repaired and policy.repair(step):
            repaired.add(step)
            pending.appendleft(step)
            continue
        if following is not None:
            _warn(world, f"{text}; trying the checkpoint before it")
    raise DamagedCheckpointError(f"nothing good is left to resume from. {'. '.join(problems)}")


def verify_together(path: Path, step: int, world: World) -> tuple[list[Damage], int]:
    """Compare every byte of a checkpoint with its digests; the ranks share the files. Collective.

    Returns:
        What is damaged, on all ranks the same, and the number of ranks that had saved it.
    """
    own: list[Damage] = []
    size = 0
    with agreed(world, f"verifying {path}", ResumeError):
        found = inspect(path, step)
        if found.manifest is None or found.found.condition is not Condition.COMPLETE:
            own = [Damage(path.name, found.found.problem)]
        else:
            shares = share_files([(name, one.size) for name, one in found.manifest.files.items()], world.size)
            own = verify_files(path, found.manifest, shares[world.rank])
            size = found.manifest.world_size
    return list(dict.fromkeys(one for part in world.gather(own) for one in part)), size


def _may_go_on(policy: DamagePolicy, problems: list[str]) -> None:
    if policy.stop:
        raise DamagedCheckpointError(
            f"{problems[-1]}. Nothing was moved; on_damage: fall_back takes the checkpoint before it"
        )


def _warn(world: World, text: str) -> None:
    if world.rank == 0:
        logger.warning(text)
