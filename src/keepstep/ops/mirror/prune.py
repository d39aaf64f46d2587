"""Applies the retention rule to a mirror by hand."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from keepstep.config.address import Address
from keepstep.errors import CouldNotLookError, KeepstepError, MirrorError
from keepstep.ops.mirror.tally import Tally
from keepstep.ops.mirror.verifying import verify_found
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.plan.mirror import Copy, CopyVerdict, plan_mirror_retention, present_line
from keepstep.plan.resume import Condition
from keepstep.plan.retention import Verdict
from keepstep.plan.trainer_files import STATE, base_name
from keepstep.storage.json_file import parse_json
from keepstep.storage.stored import StoredCheckpoint, inspect_stored, survey_store
from keepstep.storage.stores.base import Store
from keepstep.storage.stores.opening import open_store

Watch = Callable[[int, int], None]

# Who uploads from a slow place may still be at work.
_QUIET_SECONDS = 3600.0
_MAX_STATE = 512 * 1024 * 1024


@dataclass(frozen=True)
class IncompleteFolder:
    """What is older than the newest complete checkpoint, and not complete. `is_recent`: its upload may not be over."""

    name: str
    problem: str
    size: int
    is_recent: bool


@dataclass(frozen=True)
class MirrorPrunePlan:
    """What a prune of a mirror keeps and deletes.

    Attributes:
        address: of the run there.
        verdicts: oldest first.
        damaged: what looked complete and is not, by its bytes: it does not count, and stays.
        incomplete: what is deleted only on demand, and never where it is recent.
        freed: bytes of what goes by the verdicts.
        prefix: what the checkpoints are called, without the step.
    """

    address: str
    verdicts: tuple[Verdict, ...]
    damaged: tuple[str, ...]
    incomplete: tuple[IncompleteFolder, ...]
    freed: int
    prefix: str


def plan_mirror_prune(
    address: Address, keep: int, *, read_bytes: bool = False, watch: Watch = lambda done, total: None
) -> MirrorPrunePlan:
    """Decide. Changes nothing.

    What is to stay is complete by its manifest and the sizes of its files. Of a Trainer's checkpoints the best stays in
    any case, by what the newest one says.

    Args:
        address: of the run.
        keep: how many of the newest of its present line stay, at least 1.
        read_bytes: read what is to stay, and compare it with its digests.
        watch: told of that.

    Raises:
        CouldNotLookError: the store cannot be asked.
    """
    store = open_store(address)
    found = survey_store(store)
    naming = _naming(found.checkpoints)
    own = [one for one in found.checkpoints if naming.step_of(one.files.name) is not None]
    good = {_copy(one): one for one in own if one.found.condition is Condition.COMPLETE}
    best = _best(good, naming)
    damaged: list[str] = []
    read: set[Copy] = set()
    meter = Tally(sum(one.manifest.size for one in good.values() if one.manifest), watch).meter()
    while True:
        verdicts = plan_mirror_retention(list(good), _beside(best, good, keep), () if best is None else (best,))
        unread = [v.copy for v in verdicts if v.keep and v.copy not in read]
        if not read_bytes or not unread or all(v.keep for v in verdicts):
            break
        one = good[unread[-1]]
        result = verify_found(address.joined(one.files.name), one, meter)
        if result.problems:
            damaged.append(f"{one.files.name}: {result.problems[0]}")
            del good[unread[-1]]
            best = _best(good, naming)
        read.add(unread[-1])
    freed = sum(one.manifest.size for v in verdicts if not v.keep and (one := good[v.copy]).manifest)
    newest = max((copy.step for copy in good), default=-1)
    rest = [one for one in own if one.found.condition in (Condition.INCOMPLETE, Condition.DAMAGED)]
    incomplete = [_incomplete(store, one) for one in rest if one.found.step < newest]
    return MirrorPrunePlan(
        str(address),
        tuple(_told(v, best, good[v.copy]) for v in verdicts),
        tuple(damaged),
        tuple(incomplete),
        freed,
        naming.prefix,
    )


def apply_mirror_prune(plan: MirrorPrunePlan, address: Address, *, incomplete: bool = False) -> None:
    """Delete what the plan gives up, oldest first; the manifest of each before all else.

    Raises:
        MirrorError: what was to stay is not there any more, or something could not be deleted.
        CouldNotLookError: the store cannot be asked.
    """
    store, naming = open_store(address), Naming(plan.prefix)
    doomed = [naming.checkpoint_name(v.step) for v in plan.verdicts if not v.keep]
    if incomplete:
        doomed += [one.name for one in plan.incomplete if not one.is_recent]
    kept = [v.step for v in plan.verdicts if v.keep]
    if not doomed:
        return
    # Asked once more: somebody else may prune, or take the mirror over, at the same time.
    if not kept or inspect_stored(store, naming.checkpoint_name(max(kept))).found.condition is not Condition.COMPLETE:
        raise MirrorError(f"{address}: what was to stay is not complete any more; nothing was deleted")
    for number, name in enumerate(doomed):
        try:
            store.remove(name, layout.MANIFEST)
        except OSError as error:
            if isinstance(error, KeepstepError):
                raise
            raise MirrorError(
                f"{address}/{name} could not be deleted: {error.strerror or error}; {number} of {len(doomed)} are "
                "gone. The same command goes on"
            ) from error


def _naming(checkpoints: tuple[StoredCheckpoint, ...]) -> Naming:
    found = {layout.naming_of(one.files.name) for one in checkpoints}
    return layout.TRAINER if found == {layout.TRAINER} else layout.NATIVE


def _copy(one: StoredCheckpoint) -> Copy:
    return Copy(one.found.step, one.manifest.attempt if one.manifest else 0)


def _best(good: dict[Copy, StoredCheckpoint], naming: Naming) -> int | None:
    """The checkpoint that a Trainer calls its best, if it is among these."""
    if naming is not layout.TRAINER or not good:
        return None
    newest = good[max(good)].files
    try:
        state = parse_json(newest.read(STATE, _MAX_STATE))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CouldNotLookError(f"cannot read {newest}/{STATE}: {error.strerror or error}") from error
    step = naming.step_of(base_name(state.get("best_model_checkpoint")))
    return step if step in {copy.step for copy in good} else None


def _beside(best: int | None, good: Collection[Copy], keep: int) -> int:
    """How many of the newest stay where the best counts as one of those that do."""
    newest = [copy.step for copy in present_line(good)[:keep]]
    return keep if best is None or best in newest else max(1, keep - 1)


def _told(verdict: CopyVerdict, best: int | None, stored: StoredCheckpoint) -> Verdict:
    is_best = verdict.keep and verdict.copy.step == best
    reason = "the best, by what the newest says" if is_best else verdict.reason
    return Verdict(verdict.copy.step, verdict.keep, reason, stored.manifest.size if stored.manifest else 0)


def _incomplete(store: Store, one: StoredCheckpoint) -> IncompleteFolder:
    try:
        last = max((found.modified for found in store.list(one.files.prefix)), default=0.0)
    except OSError as error:
        raise CouldNotLookError(f"cannot list {one.files}: {error.strerror or error}") from error
    is_recent = time.time() - last < _QUIET_SECONDS
    return IncompleteFolder(one.files.name, one.found.problem, sum(one.sizes.values()), is_recent)
