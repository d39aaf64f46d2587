"""Who writes what. Equal values of several ranks are written once, after they were found to be equal."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from keepstep.dcp.digests import bytes_of, digest_tensor
from keepstep.dcp.entries import Entry, Scope, rank_key
from keepstep.dcp.items import LARGE, Item, list_items, local_value, signature
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import ReplicaMismatchError, SaveError
from keepstep.plan.sharing import Assignment, Listing, assign, share_common

_SHOWN = 4


@dataclass(frozen=True)
class Group:
    """Things that the same ranks hold, in an order that is the same on all of them; `facts`: types and shapes."""

    name: bytes
    items: tuple[Item, ...]
    facts: bytes


@dataclass(frozen=True)
class Plan:
    """This rank's part of a save. It holds as long as names, types, shapes and ranks do.

    Attributes:
        signature: what it was made for.
        items: what this rank writes.
        groups: what it holds together with others, and what must be equal therefore.
        aliases: the other names of a key, which are stored as its place once more.
    """

    signature: list[tuple[Any, ...]]
    items: tuple[Item, ...]
    groups: tuple[Group, ...]
    aliases: Mapping[str, Sequence[str]]


def make_plan(entries: Mapping[str, Entry], world: World, phase: str) -> Plan:
    """Agree on who writes what. Collective.

    Args:
        entries: what this rank holds.
        world: the ranks.
        phase: what is done, for the error of a rank that fails.

    Raises:
        SaveError: a rank failed.
    """
    with agreed(world, phase, SaveError):
        items = list_items(entries)
        marks = {part: _mark(own) for part, own in _by_part(items).items()}
        aliases = {key: entry.same_as for key, entry in entries.items() if entry.same_as}
    told = world.gather((marks, aliases))
    names = {alias: key for _, declared in told for alias, key in declared.items()}
    if names:
        # What any rank holds under a name of its own is no other name of something.
        held = {item.key for item in items}
        names = {
            alias: names[alias] for alias in sorted(set(names).difference(*world.gather(sorted(held & set(names)))))
        }
    # What is the same list on every rank need not be sent: all come to the same division of it.
    common = {part for part, mark in marks.items() if all(other.get(part) == mark for other, _ in told)}
    both = [item for item in items if _part_of(item) in common]
    each = [item for item in items if _part_of(item) not in common]
    writers, loads = share_common([_weight(item) for item in both], world.size)
    assignment = _assign(each, loads, world)
    own = [item for item, writer in zip(both, writers, strict=True) if writer == world.rank]
    own += [item for item, writes in zip(each, assignment.writes, strict=True) if writes]
    groups = _groups(both, each, assignment, world.size)
    aliases_of: dict[str, list[str]] = {}
    for alias, key in names.items():
        aliases_of.setdefault(key, []).append(alias)
    return Plan(signature(entries), tuple(own), groups, aliases_of)


def _assign(items: Sequence[Item], loads: Sequence[int], world: World) -> Assignment:
    places = b"".join(item.place for item in items)
    listings = world.to_main(Listing(places, array("q", [_weight(item) for item in items])))
    return world.from_main(assign(listings, loads) if world.rank == 0 else [])


def _weight(item: Item) -> int:
    return item.size if item.size >= LARGE else 0


def _part_of(item: Item) -> str:
    """The part of the state in which all ranks may hold the same list; none for what is sharded or of one rank."""
    is_whole = item.scope in (Scope.EVERY_RANK, Scope.BUFFER) and item.shape == item.whole
    return item.key.split(".")[0] if is_whole else ""


def _by_part(items: Sequence[Item]) -> dict[str, list[Item]]:
    parts: dict[str, list[Item]] = {}
    for item in items:
        if part := _part_of(item):
            parts.setdefault(part, []).append(item)
    return parts


def _mark(items: Sequence[Item]) -> bytes:
    sizes = array("q", [_weight(item) for item in items]).tobytes()
    return xxhash.xxh3_128_digest(b"".join(item.place for item in items) + sizes)


def _groups(both: Sequence[Item], each: Sequence[Item], assignment: Assignment, ranks: int) -> tuple[Group, ...]:
    found: dict[bytes, list[Item]] = {}
    if ranks > 1 and both:
        found[b"all"] = list(both)
    names = [xxhash.xxh3_128_digest(array("q", holders).tobytes()) for holders in assignment.groups]
    for item, number in zip(each, assignment.group, strict=True):
        if number >= 0:
            found.setdefault(names[number], []).append(item)
    compared = {
        name: [item for item in items if item.scope in (Scope.EVERY_RANK, Scope.BUFFER)]
        for name, items in found.items()
    }
    return tuple(_group(name, items) for name, items in compared.items() if items)


def _group(name: bytes, items: Sequence[Item]) -> Group:
    ordered = tuple(sorted(items, key=lambda item: item.place))
    return Group(name, ordered, "".join(f"{item.dtype}{item.shape}" for item in ordered).encode())


def group_digests(plan: Plan, entries: Mapping[str, Entry], pickles: Mapping[str, bytes]) -> dict[bytes, bytes]:
    """For each group of ranks one digest of all that this rank holds together with them."""
    digests = {}
    for group in plan.groups:
        digest = xxhash.xxh3_128(group.facts)
        for item in group.items:
            if item.dtype is None:
                digest.update(pickles[item.key])
            else:
                digest.update(bytes_of(local_value(entries[item.key].value)))
        digests[group.name] = digest.digest()
    return digests


def differing_groups(told: Sequence[Mapping[bytes, bytes]]) -> set[bytes]:
    """Groups whose members do not all have the same digest."""
    first: dict[bytes, bytes] = {}
    return {name for own in told for name, digest in own.items() if first.setdefault(name, digest) != digest}


def settle_differences(
    plan: Plan,
    groups: set[bytes],
    entries: Mapping[str, Entry],
    pickles: Mapping[str, bytes],
    world: World,
    phase: str,
) -> dict[str, int]:
    """Find out what differs in these groups. Collective.

    Returns:
        Buffers that are to be kept for each rank, and the first rank that holds each.

    Raises:
        SaveError: a rank failed while it compared.
        ReplicaMismatchError: on all ranks, when anything but a buffer differs.
    """
    with agreed(world, phase, SaveError):
        own = {
            (item.key, item.at): (_digest(item, entries, pickles), item.scope is Scope.BUFFER)
            for group in plan.groups
            if group.name in groups
            for item in group.items
        }
    digests = world.gather(own)
    differing = _differing(digests)
    buffers = {key for of_rank in digests for (key, _), (_, is_buffer) in of_rank.items() if is_buffer} & set(differing)
    _refuse({key: ranks for key, ranks in differing.items() if key not in buffers})
    return {key: min(rank for group in differing[key] for rank in group) for key in buffers}


def by_rank(entries: Mapping[str, Entry], first: Mapping[str, int], rank: int) -> dict[str, Entry]:
    """The same entries, buffers that differ under keys of the rank's own; those of the first holder keep their key."""
    return {
        (key if first.get(key, rank) == rank else rank_key(key, rank)): Entry(entry.value, Scope.ONE_RANK)
        if key in first
        else entry
        for key, entry in entries.items()
    }


def _digest(item: Item, entries: Mapping[str, Entry], pickles: Mapping[str, bytes]) -> str:
    if item.dtype is None:
        return xxhash.xxh3_128_hexdigest(pickles[item.key])
    return digest_tensor(local_value(entries[item.key].value))


Place = tuple[str, tuple[int, ...]]


def _differing(digests: Sequence[Mapping[Place, tuple[str, bool]]]) -> dict[str, list[list[int]]]:
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
