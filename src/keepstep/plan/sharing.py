"""Who writes what several ranks hold. Pure arithmetic: the same lists give the same answer on every rank."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

# Bytes of the digest that tells one place in a checkpoint from another.
PLACE_SIZE = 16
_PIECE = 64 * 1024


@dataclass(frozen=True)
class Listing:
    """What one rank holds: the places, joined, and the bytes at each; small things count 0."""

    places: bytes = b""
    sizes: "array[int]" = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class Assignment:
    """What one rank is told of its list.

    Attributes:
        writes: for each thing 1 if this rank writes it.
        group: for each thing the number of the group of ranks that hold it too, -1 where nobody else does.
        groups: the ranks of each group.
    """

    writes: bytearray
    group: "array[int]"
    groups: tuple[tuple[int, ...], ...]


def share_common(sizes: Sequence[int], ranks: int) -> tuple[list[int], list[int]]:
    """Divide what all ranks hold: small things to the first, so that no reader needs many files; large ones evenly.

    Returns:
        The writer of each thing, and the bytes that each rank writes.
    """
    loads = [0] * ranks
    writers = []
    for size in sizes:
        writer = min(range(ranks), key=loads.__getitem__) if size else 0
        loads[writer] += size
        writers.append(writer)
    return writers, loads


def share_files(sizes: Sequence[tuple[str, int]], ranks: int) -> list[list[str]]:
    """Divide files by their sizes, largest first, so that every rank has about as many bytes to read.

    Args:
        sizes: name and bytes of each.
        ranks: how many share them.

    Returns:
        The names for each rank.
    """
    shares: list[list[str]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    # Counted in pieces: a file that is a few bytes longer this time goes to the same rank.
    for name, size in sorted(sizes, key=lambda one: (-(one[1] // _PIECE), one[0])):
        rank = min(range(ranks), key=loads.__getitem__)
        shares[rank].append(name)
        loads[rank] += size // _PIECE
    return [sorted(share) for share in shares]


def assign(listings: Sequence[Listing], loads: Sequence[int]) -> list[Assignment]:
    """Divide what ranks hold each for itself, or some of them together.

    Args:
        listings: one for each rank.
        loads: bytes that each writes already.
    """
    first: dict[bytes, int] = {}
    several: dict[bytes, list[int]] = {}
    for rank, listing in enumerate(listings):
        places = listing.places
        for at in range(0, len(places), PLACE_SIZE):
            place = places[at : at + PLACE_SIZE]
            holder = first.setdefault(place, rank)
            if holder != rank:
                several.setdefault(place, [holder]).append(rank)
    written = list(loads)
    for rank, listing in enumerate(listings):
        written[rank] += sum(listing.sizes)
    writers = _writers(listings, several, written) if several else {}
    return [_assignment(rank, listing, several, writers) for rank, listing in enumerate(listings)]


def _writers(listings: Sequence[Listing], several: dict[bytes, list[int]], written: list[int]) -> dict[bytes, int]:
    sizes: dict[bytes, int] = {}
    for listing in listings:
        for number, size in enumerate(listing.sizes):
            place = listing.places[number * PLACE_SIZE : (number + 1) * PLACE_SIZE]
            if place in several:
                sizes[place] = size
    for place, holders in several.items():
        for holder in holders:
            written[holder] -= sizes[place]
    writers = {}
    for place, holders in several.items():
        writer = min(holders, key=written.__getitem__) if sizes[place] else holders[0]
        written[writer] += sizes[place]
        writers[place] = writer
    return writers


def _assignment(rank: int, listing: Listing, several: dict[bytes, list[int]], writers: dict[bytes, int]) -> Assignment:
    writes, group = bytearray(b"\x01" * len(listing)), array("i", [-1]) * len(listing)
    numbers: dict[tuple[int, ...], int] = {}
    if several:
        for number in range(len(listing)):
            place = listing.places[number * PLACE_SIZE : (number + 1) * PLACE_SIZE]
            if place in several:
                group[number] = numbers.setdefault(tuple(several[place]), len(numbers))
                writes[number] = writers[place] == rank
    return Assignment(writes, group, tuple(numbers))
