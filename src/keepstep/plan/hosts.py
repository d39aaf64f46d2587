"""Which ranks share a machine, and who holds a second copy of whose files."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Hosts:
    """The hosts of a job, in the order of their lowest ranks.

    Attributes:
        names: what tells each from the others.
        ranks: of each host, ascending. The first leads: it does what is done once in the host's folder.
    """

    names: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]

    def of(self, rank: int) -> int:
        """The number of a rank's host."""
        return self._hosts[rank]

    def leads(self, rank: int) -> bool:
        """Whether a rank is the first of its host."""
        return rank == self.ranks[self.of(rank)][0]

    @property
    def leaders(self) -> tuple[int, ...]:
        """The first rank of each host."""
        return tuple(ranks[0] for ranks in self.ranks)

    def peer(self, rank: int) -> int | None:
        """Who keeps a copy of this rank's files: the rank at the same place on the next host; None on a lone host."""
        return self._peers.get(rank)

    def senders(self, rank: int) -> tuple[int, ...]:
        """Whose files this rank keeps a copy of."""
        return tuple(self._senders.get(rank, ()))

    @cached_property
    def _hosts(self) -> dict[int, int]:
        return {rank: number for number, ranks in enumerate(self.ranks) for rank in ranks}

    @cached_property
    def _peers(self) -> dict[int, int]:
        peers: dict[int, int] = {}
        for ranks, following in zip(self.ranks, (*self.ranks[1:], self.ranks[0]), strict=True):
            if ranks is not following:
                peers |= {rank: following[place % len(following)] for place, rank in enumerate(ranks)}
        return peers

    @cached_property
    def _senders(self) -> dict[int, list[int]]:
        senders: dict[int, list[int]] = {}
        for rank, peer in self._peers.items():
            senders.setdefault(peer, []).append(rank)
        return senders


def hosts_of(names: Sequence[str]) -> Hosts:
    """The hosts, from the name of each rank's."""
    found: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        found.setdefault(name, []).append(rank)
    return Hosts(tuple(found), tuple(map(tuple, found.values())))
