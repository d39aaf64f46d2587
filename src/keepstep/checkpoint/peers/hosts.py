"""Which ranks share a machine, and so a folder; and those of one machine as a world."""

import os
from typing import TypeVar

from keepstep.dist.mailbox import Mailbox
from keepstep.dist.world import World
from keepstep.plan.hosts import Hosts, hosts_of
from keepstep.storage.process import this_process

T = TypeVar("T")
# Tells machines apart where their names do not.
HOST_VARIABLE = "KEEPSTEP_HOST"


def find_hosts(world: World) -> Hosts:
    """Group the ranks by machine: by name and boot of the kernel, or by what `KEEPSTEP_HOST` says. Collective."""
    me = this_process()
    return hosts_of(world.gather(os.environ.get(HOST_VARIABLE) or f"{me.host} {me.boot}"))


class HostWorld:
    """The ranks of this rank's host as a `World`. All ranks of the job call its methods at the same time.

    Args:
        world: all ranks.
        hosts: of the job.
    """

    def __init__(self, world: World, hosts: Hosts) -> None:
        self._world = world
        self._ranks = hosts.ranks[hosts.of(world.rank)]
        self.rank, self.size = self._ranks.index(world.rank), len(self._ranks)

    def gather(self, value: T) -> list[T]:
        told = self._world.gather(value)
        return [told[rank] for rank in self._ranks]

    def broadcast(self, value: T) -> T:
        return self.gather(value)[0]

    def to_main(self, value: T) -> list[T]:
        told = self.gather(value)
        return told if self.rank == 0 else []

    def from_main(self, values: list[T]) -> T:
        return self.broadcast(values)[self.rank]

    def mailbox(self, name: str) -> Mailbox:
        return self._world.mailbox(name)
