"""Which ranks share a machine, and who holds a second copy of whose files."""

from collections.abc import Sequence
from dataclasses import dataclass


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
        return next(number for number, ranks in enumerate(self.ranks) if rank in ranks)

    def leads(self, rank: int) -> bool:
        """Whether a rank is the first of its host."""
        return rank == self.ranks[self.of(rank)][0]

    @property
    def leaders(self) -> tuple[int, ...]:
        """The first rank of each host."""
        return tuple(ranks[0] for ranks in self.ranks)

    def peer(self, rank: int) -> int | None:
        """Who keeps a copy of this rank's files: the rank at the same place on the next host; None on a lone host."""
        if len(self.ranks) == 1:
            return None
        host = self.of(rank)
        following = self.ranks[(host + 1) % len(self.ranks)]
        return following[self.ranks[host].index(rank) % len(following)]

    def senders(self, rank: int) -> tuple[int, ...]:
        """Whose files this rank keeps a copy of."""
        return tuple(other for ranks in self.ranks for other in ranks if self.peer(other) == rank)


def hosts_of(names: Sequence[str]) -> Hosts:
    """The hosts, from the name of each rank's."""
    found: dict[str, list[int]] = {}
    for rank, name in enumerate(names):
        found.setdefault(name, []).append(rank)
    return Hosts(tuple(found), tuple(map(tuple, found.values())))
