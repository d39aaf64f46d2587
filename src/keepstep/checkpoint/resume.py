"""The resume path. Read it from top to bottom: nothing of the job changes before everything is known to fit."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keepstep.checkpoint.save import STEP_KEY
from keepstep.dcp.metadata import read_metadata, stored_keys
from keepstep.dcp.reader import read
from keepstep.dist.agree import agreed
from keepstep.dist.world import World, host_name
from keepstep.errors import CheckpointNotFoundError, CouldNotLookError, DamagedCheckpointError, ResumeError
from keepstep.plan import layout
from keepstep.plan.resume import Condition, Found, ResumeDecision, Start, decide
from keepstep.state.component import Component
from keepstep.state.job_state import apply, check, plan_load
from keepstep.storage.survey import inspect, survey
from keepstep.storage.verify import Damage, verify_files

logger = logging.getLogger("keepstep")

_RETRIES = 5
_RETRY_SECONDS = 0.5


@dataclass(frozen=True)
class Resumed:
    """Where a job starts: completed steps, and the checkpoint they come from (None for a fresh start)."""

    step: int
    path: Path | None
    world_size: int | None = None


def look(folder: Path, world: World, requested: int | None = None) -> ResumeDecision:
    """Find out what a start would do. Collective, changes nothing.

    Every rank lists the folder; the main process decides; ranks that see other checkpoints are an error.

    Raises:
        ResumeError: a rank could not look, or sees another listing.
    """
    for retry in range(_RETRIES):
        with agreed(world, f"looking for checkpoints in {folder}", ResumeError):
            seen = survey(folder)
            found = [c.found for c in seen.checkpoints]
        listings = world.gather([(f.step, f.condition) for f in found])
        differing = [rank for rank, listing in enumerate(listings) if listing != listings[0]]
        if not differing:
            for name in seen.foreign:
                if layout.step_of(name) is not None:
                    _warn(world, f"ignored {folder / name}: a checkpoint is a folder, and this is a link or a file")
            return world.broadcast(decide(found, requested))
        if retry < _RETRIES - 1:
            time.sleep(_RETRY_SECONDS)  # network file systems cache listings for a moment
    hosts = world.gather(host_name())
    listed = "; ".join(f"rank {rank} ({hosts[rank]}): {_steps(listings[rank])}" for rank in [0, *differing[:3]])
    raise ResumeError(
        f"the ranks see different checkpoints in {folder}: {listed}. save_dir must be on a file system that all ranks "
        "share",
        rank=differing[0],
        phase="looking",
    )


def resume(folder: Path, components: Sequence[Component], world: World, requested: int | None = None) -> Resumed:
    """Restore the newest good checkpoint, or say that this is a fresh start. Collective.

    Raises:
        CheckpointNotFoundError: the requested step is not there.
        DamagedCheckpointError: checkpoints are there, and none is good.
        StateMismatchError: the checkpoint does not fit the registered state; nothing was changed.
        ResumeError: a rank failed; named on all ranks.
    """
    decision = look(folder, world, requested)
    for found in decision.ignored:
        _warn(world, f"ignored {folder / layout.checkpoint_name(found.step)}: {found.problem}")
    match decision.start:
        case Start.NOT_FOUND:
            raise CheckpointNotFoundError(f"{folder}: {decision.reason}")
        case Start.TOO_NEW:
            raise CouldNotLookError(f"{folder}: {decision.reason}")
        case Start.NOTHING_GOOD:
            raise DamagedCheckpointError(f"{folder}: no checkpoint is complete and unchanged. {decision.reason}")
        case Start.FRESH:
            return Resumed(0, None)
        case Start.RESUME:
            pass
    problems = []
    for step in decision.candidates:
        path = folder / layout.checkpoint_name(step)
        damage = _verify(path, step, world)
        if not damage:
            return Resumed(step, path, _load(path, components, world))
        text = f"{path} is damaged: {damage[0]}" + (f" and {len(damage) - 1} more places" if len(damage) > 1 else "")
        problems.append(text)
        if requested is not None:
            break
        _warn(world, f"{text}; trying the checkpoint before it")
    raise DamagedCheckpointError(f"nothing good is left to resume from. {'. '.join(problems)}")


def _verify(path: Path, step: int, world: World) -> list[Damage]:
    """Check every byte; the ranks share the files out."""
    with agreed(world, f"verifying {path}", ResumeError):
        found = inspect(path, step)
        manifest = found.manifest
        if manifest is None or found.found.condition is not Condition.COMPLETE:
            damage = [Damage(path.name, found.found.problem)] if world.rank == 0 else []
        else:
            largest_first = sorted(manifest.files, key=lambda name: (-manifest.files[name].size, name))
            damage = verify_files(path, manifest, largest_first[world.rank :: world.size])
    return [one for part in world.gather(damage) for one in part]


def _load(path: Path, components: Sequence[Component], world: World) -> int:
    with agreed(world, f"matching {path} with the registered state", ResumeError):
        manifest = inspect(path, layout.step_of(path.name) or 0).manifest
        if manifest is None:
            raise CouldNotLookError(f"{path} vanished while it was loaded")
        metadata = read_metadata(path)
        plan = plan_load(components, stored_keys(metadata), frozenset({STEP_KEY}))
        trees = read(path, {}, plan.trees, metadata)
        check(plan, trees)
    with agreed(world, f"loading {path}", ResumeError):
        read(path, plan.tensors, (), metadata)
        apply(plan, trees)
    return manifest.world_size


def _warn(world: World, text: str) -> None:
    if world.rank == 0:
        logger.warning(text)


def _steps(listing: Sequence[tuple[int, Condition]]) -> str:
    return ", ".join(f"save-{step} {condition.value}" for step, condition in listing) or "none"


__all__ = ["Found", "Resumed", "look", "resume"]
