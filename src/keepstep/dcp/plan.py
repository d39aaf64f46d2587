"""Who writes what. Equal values of several ranks are written once, after they were found to be equal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.tensor import DTensor

from keepstep.dcp.digests import digest_tensor, digest_tree
from keepstep.dcp.entries import Entry, Scope, rank_key
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import ReplicaMismatchError, SaveError

_SHOWN = 4


@dataclass(frozen=True)
class WritePlan:
    """This rank's part of a save, and the metadata of the whole (still without places in files).

    `aliases` are the other names of a key, which are stored as its place once more.
    """

    planner: DefaultSavePlanner
    own: SavePlan
    metadata: Metadata
    aliases: Mapping[str, Sequence[str]]


# A key, and where in the whole tensor a shard of it begins.
Place = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class LocalPlan:
    """What this rank could write; other ranks may hold some of it too."""

    planner: DefaultSavePlanner
    plan: SavePlan
    entries: Mapping[str, Entry]
    aliases: Mapping[str, str]


def plan_locally(entries: Mapping[str, Entry], world: World) -> LocalPlan:
    """List what this rank holds. No collective."""
    own = {key: entry for key, entry in entries.items() if entry.scope is not Scope.MAIN or world.rank == 0}
    aliases = {key: entry.same_as for key, entry in own.items() if entry.same_as}
    own = {key: entry for key, entry in own.items() if not entry.same_as}
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner({key: entry.value for key, entry in own.items()}, is_coordinator=world.rank == 0)
    return LocalPlan(planner, planner.create_local_plan(), own, aliases)


def agree_plan(local: LocalPlan, world: World, phase: str) -> WritePlan:
    """Agree on who writes what. Collective; from the same lists every rank comes to the same plan.

    Args:
        local: what this rank holds.
        world: the ranks.
        phase: what is done, for the error of a rank that fails.

    Raises:
        SaveError: a rank failed while it compared.
        ReplicaMismatchError: on all ranks, when a value that must be the same on all of them is not.
    """
    plans = world.gather(local.plan)
    aliases = {alias: key for own in world.gather(dict(local.aliases)) for alias, key in own.items()}
    shared = _held_by_several(plans)
    # What only some ranks hold they must not decide on alone: all see the digests, and which keys are buffers.
    with agreed(world, phase, SaveError):
        own = _digests(local.entries, shared)
    digests = world.gather(own)
    differing = _differing(digests)
    buffers = {key for of_rank in digests for (key, _), (_, is_buffer) in of_rank.items() if is_buffer} & set(differing)
    _refuse({key: ranks for key, ranks in differing.items() if key not in buffers})
    if buffers:
        first = {key: min(rank for group in differing[key] for rank in group) for key in buffers}
        with agreed(world, phase, SaveError):
            local = plan_locally(_by_rank(local.entries, first, world.rank), world)
        plans = world.gather(local.plan)
    planner = local.planner
    plans, metadata = planner.create_global_plan(plans)
    keys = metadata.state_dict_metadata
    aliases = {alias: key for alias, key in aliases.items() if key in keys and alias not in keys}
    keys.update({alias: keys[key] for alias, key in aliases.items()})
    metadata.planner_data = {key: tuple(key.split(".", 1)) for key in metadata.state_dict_metadata}
    names: dict[str, list[str]] = {}
    for alias, key in sorted(aliases.items()):
        names.setdefault(key, []).append(alias)
    return WritePlan(planner, planner.finish_plan(plans[world.rank]), metadata, names)


def _held_by_several(plans: Sequence[SavePlan]) -> set[Place]:
    """Places that more than one rank lists: one of them will be written, so all must be equal."""
    counts: dict[Place, int] = {}
    for plan in plans:
        for place in {(item.index.fqn, tuple(item.index.offset or ())) for item in plan.items}:
            counts[place] = counts.get(place, 0) + 1
    return {place for place, count in counts.items() if count > 1}


def _digests(entries: Mapping[str, Entry], shared: set[Place]) -> dict[Place, tuple[str, bool]]:
    """Digest of every value that another rank holds too, and whether it is a buffer, by its place."""
    digests = {}
    for key, entry in entries.items():
        if entry.scope not in (Scope.EVERY_RANK, Scope.BUFFER):
            continue
        value, is_buffer = entry.value, entry.scope is Scope.BUFFER
        if isinstance(value, DTensor):
            for chunk in value.__create_chunk_list__():
                if (key, tuple(chunk.offsets)) in shared:
                    digests[key, tuple(chunk.offsets)] = digest_tensor(value.to_local()), is_buffer
            continue
        place = (key, (0,) * value.ndim if isinstance(value, torch.Tensor) else ())
        if place in shared:
            digest = digest_tensor(value) if isinstance(value, torch.Tensor) else digest_tree(value)
            digests[place] = digest, is_buffer
    return digests


def _by_rank(entries: Mapping[str, Entry], first: Mapping[str, int], rank: int) -> dict[str, Entry]:
    """The same entries, buffers that differ under keys of the rank's own; those of the first holder keep their key."""
    return {
        (key if first.get(key, rank) == rank else rank_key(key, rank)): Entry(entry.value, Scope.ONE_RANK)
        if key in first
        else entry
        for key, entry in entries.items()
    }


def _differing(digests: list[dict[Place, tuple[str, bool]]]) -> dict[str, list[list[int]]]:
    """Keys whose value is not the same on all ranks that have it, with the ranks of each value."""
    groups: dict[Place, dict[str, list[int]]] = {}
    for rank, own in enumerate(digests):
        for place, (digest, _) in own.items():
            groups.setdefault(place, {}).setdefault(digest, []).append(rank)
    return {key: list(ranks.values()) for (key, _), ranks in groups.items() if len(ranks) > 1}


def _refuse(differing: Mapping[str, list[list[int]]]) -> None:
    if differing:
        shown = "; ".join(
            f"{key} (one value on ranks {', another on '.join(', '.join(map(str, r)) for r in ranks)})"
            for key, ranks in list(differing.items())[:_SHOWN]
        )
        more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        raise ReplicaMismatchError(
            f"values that must be the same on all ranks differ: {shown}{more}. If each rank keeps its own value, wrap "
            "the object in keepstep.PerRank; if not, the ranks have drifted apart"
        )
