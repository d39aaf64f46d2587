"""The resume path. Read it from top to bottom: nothing of the job changes before everything is known to fit."""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from keepstep.checkpoint.garbage import no_collections
from keepstep.checkpoint.snapshot import STEP_KEY
from keepstep.dcp.reader import fill, read_trees, verify_rest
from keepstep.dcp.source import DamageFoundError, Source, open_source
from keepstep.dist.agree import agreed
from keepstep.dist.world import World, host_name
from keepstep.errors import (
    CheckpointNotFoundError,
    CouldNotLookError,
    DamagedCheckpointError,
    ResumeError,
    StateMismatchError,
    UnsupportedStateError,
)
from keepstep.plan import layout
from keepstep.plan.blocks import rest, share_out
from keepstep.plan.durability import Home
from keepstep.plan.layout import Naming
from keepstep.plan.manifest import Manifest
from keepstep.plan.resume import Condition, Found, ResumeDecision, Start, decide
from keepstep.state.component import Component
from keepstep.state.job_state import LoadPlan, apply, check, plan_load, refuse_problems
from keepstep.storage.files import Files
from keepstep.storage.line import abandoned_by, read_line
from keepstep.storage.mount import durability_of
from keepstep.storage.quarantine import quarantined_steps
from keepstep.storage.survey import inspect, survey
from keepstep.storage.verify import Damage, verify_files

logger = logging.getLogger("keepstep")

_RETRIES = 5
_RETRY_SECONDS = 0.5
_TO_FALL_BACK = "Nothing was moved; on_damage: fall_back takes the checkpoint before it"


@dataclass(frozen=True)
class DamagePolicy:
    """What is done about checkpoints that are not as they were written.

    Attributes:
        stop: nothing, and the resume fails; otherwise the one before is taken.
        full: every byte is compared, not only what this job reads.
        put_away: takes a damaged one out of the way, given its step, what is damaged, and the step that is tried next.
            Called on all ranks.
        repair: brings a whole copy of that step from elsewhere, if there is one. Called on all ranks; returns whether
            it is there now.
    """

    stop: bool = False
    full: bool = True
    put_away: Callable[[int, Sequence[Damage], int | None], None] = lambda step, damage, following: None
    repair: Callable[[int], bool] = lambda step: False


@dataclass(frozen=True)
class Resumed:
    """Where a job starts: completed steps, and the checkpoint they come from.

    Attributes:
        step: completed steps.
        path: the checkpoint in the run's folder; None for a fresh start, and where it was read elsewhere.
        world_size: of the job that saved it.
        elsewhere: where it was read, if that was not in the run's folder.
    """

    step: int
    path: Path | None
    world_size: int | None = None
    elsewhere: str = ""


@dataclass(frozen=True)
class Elsewhere:
    """A checkpoint that is read where it lies, and not in the run's folder; on all ranks the same.

    Attributes:
        step, manifest: of it.
        where: for people.
        files: called on each rank that reads it.
        record: its run record.
    """

    step: int
    manifest: Manifest
    where: str
    files: Callable[[], Files]
    record: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.where


def look(
    folder: Path,
    world: World,
    requested: int | None = None,
    naming: Naming = layout.NATIVE,
    among: Collection[int] | None = None,
) -> ResumeDecision:
    """Find out what a start would do. Collective, changes nothing.

    Every rank lists the folder; the main process decides; ranks that see other checkpoints are an error. On what is
    mounted from elsewhere, files that are missing or short get some time to come.

    Args:
        folder: the run's folder.
        world: the ranks.
        requested: the step that is wanted; None for the newest.
        naming: how checkpoints are called there.
        among: only these steps are looked at, where that was decided before; None for all.

    Raises:
        ResumeError: a rank could not look, or sees another listing.
    """
    is_remote = durability_of(folder).home is Home.REMOTE
    for retry in range(_RETRIES):
        with agreed(world, f"looking for checkpoints in {folder}", ResumeError):
            seen = survey(folder, naming)
            abandoned = abandoned_by(read_line(folder))
            present = [c for c in seen.checkpoints if among is None or c.found.step in among]
            found = [c.found for c in present if not abandoned(c.found.step, c.manifest)]
            quarantined = quarantined_steps(folder)
        is_late = is_remote and any(one.may_arrive or one.may_grow for one in found)
        told = world.gather(([(f.step, f.condition) for f in found], is_late))
        listings = [listing for listing, _ in told]
        differing = [rank for rank, listing in enumerate(listings) if listing != listings[0]]
        if not differing and (retry == _RETRIES - 1 or not any(late for _, late in told)):
            odd = tuple(name for name in seen.foreign if naming.step_of(name) is not None)
            return world.broadcast(replace(decide(found, requested, quarantined), odd=odd))
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


def warn_of_ignored(folder: Path, decision: ResumeDecision, world: World, naming: Naming = layout.NATIVE) -> None:
    """Name, on the main process, what looks like a checkpoint and is passed over."""
    for name in decision.odd:
        _warn(world, f"ignored {folder / name}: a checkpoint is a folder, and this is a link or a file")
    for found in decision.ignored:
        _warn(world, f"ignored {folder / naming.checkpoint_name(found.step)}: {found.problem}")


def refuse(folder: Path, decision: ResumeDecision) -> None:
    """Raise what a decision means, where it means neither a fresh start nor a resume.

    Raises:
        CheckpointNotFoundError, CouldNotLookError, DamagedCheckpointError: see `resume`.
    """
    match decision.start:
        case Start.NOT_FOUND:
            raise CheckpointNotFoundError(f"{folder}: {decision.reason}")
        case Start.TOO_NEW:
            raise CouldNotLookError(f"{folder}: {decision.reason}")
        case Start.NOTHING_GOOD:
            raise DamagedCheckpointError(f"{folder}: no checkpoint is complete and unchanged. {decision.reason}")
        case Start.FRESH | Start.RESUME:
            pass


def resume(
    folder: Path,
    components: Sequence[Component],
    world: World,
    requested: int | None = None,
    optional: frozenset[str] = frozenset(),
    policy: DamagePolicy = DamagePolicy(),
    guard: Callable[[int], None] = lambda step: None,
    elsewhere: Sequence[Elsewhere] = (),
    among: Collection[int] | None = None,
) -> Resumed:
    """Restore the newest good checkpoint, or say that this is a fresh start. Collective.

    Args:
        folder: the run's folder.
        components: the parts of the job.
        world: the ranks.
        requested: the step to restore; None for the newest.
        optional: names of components that may find nothing in the checkpoint, or leave something.
        policy: what is done about damaged ones.
        guard: called on all ranks with the step that is to be loaded next; raises where that must not be.
        elsewhere: checkpoints that are tried before those in the folder, in this order.
        among: as of `look`.

    Raises:
        CheckpointNotFoundError: the requested step is not there.
        DamagedCheckpointError: checkpoints are there, and none is good, or the newest is not and the policy is to stop.
        StateMismatchError: the checkpoint does not fit the registered state; nothing was changed.
        ResumeError: a rank failed; named on all ranks.
    """
    decision = look(folder, world, requested, among=among)
    warn_of_ignored(folder, decision, world)
    if not elsewhere or decision.start is Start.TOO_NEW:
        refuse(folder, decision)
        if decision.start is Start.FRESH:
            return Resumed(0, None)
    if policy.stop and decision.damaged:
        worst = decision.damaged[0]
        raise DamagedCheckpointError(
            f"{folder / layout.checkpoint_name(worst.step)} is damaged: {worst.problem}. {_TO_FALL_BACK}"
        )
    candidates = decision.candidates if requested is None else decision.candidates[:1]
    for one in decision.damaged:
        policy.put_away(one.step, [Damage("", one.problem)], next(iter(candidates), None))
    problems: list[str] = []
    pending: deque[tuple[int, Path | Elsewhere]] = deque((one.step, one) for one in elsewhere)
    pending.extend((step, folder / layout.checkpoint_name(step)) for step in candidates)
    repaired: set[int] = set()
    while pending:
        step, place = pending.popleft()
        older = [other for _, other in pending if isinstance(other, Path)]
        guard(step)
        try:
            with no_collections():
                damage, loaded = _load(place, components, world, older, optional, full=policy.full)
        except StateMismatchError as error:
            if not problems:
                raise
            text = f"{error} (But weights were partly overwritten before: {'. '.join(problems)})"
            raise StateMismatchError(text.replace("; nothing was changed", "", 1)) from error
        if loaded is not None:
            if isinstance(place, Path):
                return Resumed(step, place, loaded)
            return Resumed(step, None, loaded, str(place))
        text = f"{place} is damaged: {damage[0]}" + (f" and {len(damage) - 1} more places" if len(damage) > 1 else "")
        problems.append(text)
        if policy.stop:
            raise DamagedCheckpointError(f"{text}. {_TO_FALL_BACK} (Weights in memory may be partly overwritten.)")
        if isinstance(place, Path):
            policy.put_away(step, damage, pending[0][0] if pending else None)
            if step not in repaired and policy.repair(step):
                repaired.add(step)
                pending.appendleft((step, place))
                continue
        if pending:
            _warn(world, f"{text}; trying the checkpoint before it")
    raise DamagedCheckpointError(
        f"nothing good is left to resume from; weights in memory may be partly those of a damaged checkpoint. "
        f"{'. '.join(problems)}"
    )


def _load(
    path: Path | Elsewhere,
    components: Sequence[Component],
    world: World,
    older: Sequence[Path],
    optional: frozenset[str],
    *,
    full: bool,
) -> tuple[list[Damage], int | None]:
    """Restore one checkpoint, comparing every byte with its digest on the way. Collective.

    Each rank reads what it needs; what nobody needs is shared out. Nothing of the job changes before all is known to
    fit; then weights are filled in place, and only when every byte was good does any other part change.

    Returns:
        What is damaged, on all ranks the same; and the number of ranks that had saved it, None where it is damaged.
    """
    damage: list[Damage] = []
    with ExitStack() as closing:
        with agreed(world, f"opening {path}", ResumeError), _collecting(damage):
            source = closing.enter_context(_open(path, world))
        if found := _all(damage, world):
            return found, None
        with agreed(world, f"matching {path} with the registered state", ResumeError), _collecting(damage):
            plan = plan_load(components, source.stored(), frozenset({STEP_KEY}), optional)
        refuse_problems(world.gather(plan.problems))
        with agreed(world, f"reading the values of {path}", ResumeError), _collecting(damage):
            trees = read_trees(source, plan.trees)
            check(plan, trees)
        if found := _all(damage, world):
            return found, None
        with agreed(world, f"loading {path}", ResumeError), _collecting(damage):
            kept = _keep(plan, source, older)
            fill(source, plan.tensors)
        # All ranks go on together, or none does: the rest is shared out among all of them.
        found = _all(damage, world)
        if not found and full:
            found = _all(_verify_rest(source, path, world), world)
        if found:
            _put_back(kept)
            return found, None
        with agreed(world, f"applying {path}", ResumeError):
            apply(plan, trees)
        return [], source.manifest.world_size


def _open(path: Path | Elsewhere, world: World) -> Source:
    if isinstance(path, Elsewhere):
        return Source(path.files(), path.manifest)  # its run record was read and compared before it was chosen
    found = inspect(path, layout.step_of(path.name) or 0)
    if found.manifest is None or found.found.condition is not Condition.COMPLETE:
        raise DamageFoundError(Damage(path.name, found.found.problem))
    if world.rank == 0:
        for damage in verify_files(path, found.manifest, [layout.RUN_RECORD]):
            raise DamageFoundError(damage)
    return Source(path, found.manifest)


def _verify_rest(source: Source, path: Path | Elsewhere, world: World) -> list[Damage]:
    """The ranks share out the blocks that none of them has read."""
    damage: list[Damage] = []
    left = rest(source.blocks(), world.gather(source.touched_runs()))
    with agreed(world, f"verifying {path}", ResumeError), _collecting(damage):
        verify_rest(source, share_out(left, world.rank, world.size))
    return damage


def _keep(plan: LoadPlan, source: Source, older: Sequence[Path]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What is filled in place, and would not be filled again by every older checkpoint, as it is now."""
    in_all = set(plan.tensors)
    for path in older:
        # One that is damaged cannot be loaded either; its metadata is compared with its digest before it is parsed.
        with (
            contextlib.suppress(DamagedCheckpointError, UnsupportedStateError, OSError),
            open_source(path) as source_before,
        ):
            in_all &= set(source_before.stored())
    live = [plan.tensors[key] for key in set(plan.tensors) - in_all] if older else []
    return [(tensor, tensor.detach().clone()) for tensor in live]


def _put_back(kept: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for tensor, before in kept:
            tensor.copy_(before)


@contextmanager
def _collecting(damage: list[Damage]) -> Iterator[None]:
    """Note damage in place of raising it: all ranks must hear of it before one leaves."""
    try:
        yield
    except DamageFoundError as error:
        damage.append(error.damage)


def _all(damage: Sequence[Damage], world: World) -> list[Damage]:
    """What any rank has found, each once."""
    return list(dict.fromkeys(one for part in world.gather(list(damage)) for one in part))


def _warn(world: World, text: str) -> None:
    if world.rank == 0:
        logger.warning(text)


def _steps(listing: Sequence[tuple[int, Condition]]) -> str:
    return ", ".join(f"save-{step} {condition.value}" for step, condition in listing) or "none"


__all__ = ["DamagePolicy", "Found", "Resumed", "look", "refuse", "resume"]
