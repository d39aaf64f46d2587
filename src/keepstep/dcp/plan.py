"""Who writes what. Equal values of several ranks are written once, after they were found to be equal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.tensor import DTensor, Replicate

from keepstep.dcp.digests import digest_tensor, digest_tree
from keepstep.dcp.entries import Entry, Scope, rank_key
from keepstep.dist.world import World
from keepstep.errors import ReplicaMismatchError

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


@dataclass(frozen=True)
class LocalPlan:
    """What this rank could write: its items, and the digests of those that other ranks may hold too."""

    planner: DefaultSavePlanner
    plan: SavePlan
    digests: dict[tuple[str, tuple[int, ...]], str]
    entries: Mapping[str, Entry]
    aliases: Mapping[str, str]


def plan_locally(entries: Mapping[str, Entry], world: World) -> LocalPlan:
    """List what this rank holds. No collective."""
    own = {key: entry for key, entry in entries.items() if entry.scope is not Scope.MAIN or world.rank == 0}
    aliases = {key: entry.same_as for key, entry in own.items() if entry.same_as}
    own = {key: entry for key, entry in own.items() if not entry.same_as}
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner({key: entry.value for key, entry in own.items()}, is_coordinator=world.rank == 0)
    return LocalPlan(
        planner, planner.create_local_plan(), _replica_digests(own) if world.size > 1 else {}, own, aliases
    )


def agree_plan(local: LocalPlan, world: World) -> WritePlan:
    """Agree on who writes what. Collective; from the same lists every rank comes to the same plan.

    Raises:
        ReplicaMismatchError: on all ranks, when a value that must be the same on all of them is not.
    """
    gathered = world.gather((local.plan, local.digests))
    aliases = {alias: key for own in world.gather(dict(local.aliases)) for alias, key in own.items()}
    differing = _differing([digest for _, digest in gathered])
    own = {key for key in differing if key in local.entries and local.entries[key].scope is Scope.BUFFER}
    _refuse({key: ranks for key, ranks in differing.items() if key not in own})
    if own:
        local = plan_locally(_by_rank(local.entries, own, world.rank), world)
        gathered = world.gather((local.plan, {}))
    planner = local.planner
    plans, metadata = planner.create_global_plan([plan for plan, _ in gathered])
    keys = metadata.state_dict_metadata
    aliases = {alias: key for alias, key in aliases.items() if key in keys and alias not in keys}
    keys.update({alias: keys[key] for alias, key in aliases.items()})
    metadata.planner_data = {key: tuple(key.split(".", 1)) for key in metadata.state_dict_metadata}
    names: dict[str, list[str]] = {}
    for alias, key in sorted(aliases.items()):
        names.setdefault(key, []).append(alias)
    return WritePlan(planner, planner.finish_plan(plans[world.rank]), metadata, names)


def _replica_digests(entries: Mapping[str, Entry]) -> dict[tuple[str, tuple[int, ...]], str]:
    """Digest of every value that another rank may hold too, by key and offset of the shard."""
    digests = {}
    for key, entry in entries.items():
        if entry.scope not in (Scope.EVERY_RANK, Scope.BUFFER):
            continue
        value = entry.value
        if isinstance(value, DTensor):
            if _is_replicated(value):
                for chunk in value.__create_chunk_list__():
                    digests[key, tuple(chunk.offsets)] = digest_tensor(value.to_local())
        elif isinstance(value, torch.Tensor):
            digests[key, ()] = digest_tensor(value)
        else:
            digests[key, ()] = digest_tree(value)
    return digests


def _is_replicated(tensor: DTensor) -> bool:
    sizes = tensor.device_mesh.shape
    return any(size > 1 and isinstance(p, Replicate) for size, p in zip(sizes, tensor.placements, strict=True))


def _by_rank(entries: Mapping[str, Entry], differing: set[str], rank: int) -> dict[str, Entry]:
    """The same entries, those that differ between ranks under keys of the rank's own."""
    return {
        rank_key(key, rank) if key in differing else key: Entry(entry.value, Scope.ONE_RANK)
        if key in differing
        else entry
        for key, entry in entries.items()
    }


def _differing(digests: list[dict[tuple[str, tuple[int, ...]], str]]) -> dict[str, list[list[int]]]:
    """Keys whose value is not the same on all ranks that have it, with the ranks of each value."""
    groups: dict[tuple[str, tuple[int, ...]], dict[str, list[int]]] = {}
    for rank, own in enumerate(digests):
        for place, digest in own.items():
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
