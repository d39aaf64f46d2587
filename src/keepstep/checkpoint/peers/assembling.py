"""Puts the newest save together from what lies on the hosts, so that each has it whole. Collective.

The main process decides from what the leaders tell; nothing is written before it is known what is taken, that every
file of it is as it was written, and that this job may go on from it. From then on a resume is that of a shared folder.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from keepstep.checkpoint.claim import FolderClaim
from keepstep.checkpoint.folders import Judge
from keepstep.checkpoint.peers.bringing import Bringing
from keepstep.checkpoint.peers.holdings import join
from keepstep.checkpoint.resume import DamagePolicy
from keepstep.dist.agree import told_to_main
from keepstep.dist.wire import Wire
from keepstep.dist.world import World
from keepstep.errors import (
    CheckpointNotFoundError,
    CouldNotLookError,
    DamagedCheckpointError,
    KeepstepError,
    ResumeError,
)
from keepstep.plan import layout
from keepstep.plan.assemble import Assembly, Transfer, Version, choose, plan_transfers
from keepstep.plan.hosts import Hosts
from keepstep.plan.manifest import Manifest
from keepstep.plan.sharing import share_files
from keepstep.storage.holdings import Held, held_in
from keepstep.storage.run_record import read_true_record
from keepstep.storage.verify import verify_files

logger = logging.getLogger("keepstep")

_SHOWN = 3


@dataclass(frozen=True)
class Decision:
    """What the main process tells all ranks.

    Attributes:
        version, manifest: what is taken; None for a fresh start.
        transfers: who sends what.
        present: whether a host has committed it.
        unverified: files that each host has to look through first; empty when all were.
        error: what all ranks raise.
    """

    version: Version | None = None
    manifest: Manifest | None = None
    transfers: tuple[Transfer, ...] = ()
    present: tuple[bool, ...] = ()
    unverified: tuple[tuple[str, ...], ...] = ()
    error: KeepstepError | None = None


class Assembling:
    """One look at all hosts, and what comes of it.

    Args:
        folder: the run's folder, on each host another one.
        world: the ranks.
        hosts: of the job.
        wire: between the ranks; None on a lone host.
        policy: whether damage to the newest save is an error.
    """

    def __init__(self, folder: Path, world: World, hosts: Hosts, wire: Wire | None, policy: DamagePolicy) -> None:
        self._folder, self._world, self._hosts, self._wire = folder, world, hosts, wire
        self._policy = policy
        self._held: list[Held] = []
        self._holdings: list[dict[Version, set[str]]] = []
        self._manifests: dict[Version, Manifest] = {}
        self._verified: set[Version] = set()
        self._damaged: set[Version] = set()
        self._told: set[str] = set()

    def bring(self, requested: int | None, take: Callable[[], FolderClaim], judge: Judge) -> int | None:
        """Bring the newest save, or that of a step, to every host.

        Args:
            requested: the step; None for the newest.
            take: takes the folders; called before anything is written.
            judge: called with what is to be brought, where something is.

        Returns:
            Its step; None for a fresh start.

        Raises:
            CheckpointNotFoundError: the requested step cannot be put together.
            DamagedCheckpointError: saves are there, and none can.
            CouldNotLookError: the newest is of a newer version of keepstep.
            ResumeError: a rank failed.
        """
        self._look()
        while True:
            found = self._world.broadcast(self._decide(requested) if self._world.rank == 0 else Decision())
            if found.error is not None:
                raise found.error
            if found.version is None or found.manifest is None:
                return None
            if any(found.unverified):
                self._verify(found.version, found.manifest, found.unverified)
                continue
            if not found.transfers:
                return found.version.step
            self._judge(found, found.version.step, judge)
            bad = Bringing(self._folder, self._world, self._hosts, self._wire, take()).bring(
                found.manifest, found.transfers, found.present
            )
            if not bad:
                return found.version.step
            self._forget(found.version, [(one.source, one.file) for one in bad], "was not sent as it was written")

    def _look(self) -> None:
        leads = self._hosts.leads(self._world.rank)
        phase = f"looking for checkpoints in {self._folder}"
        told = told_to_main(self._world, phase, lambda: held_in(self._folder) if leads else Held(), ResumeError)
        if self._world.rank == 0:
            self._held = [told[rank] for rank in self._hosts.leaders]
            self._holdings, self._manifests = join(self._held)

    def _decide(self, requested: int | None) -> Decision:
        found = choose(self._holdings, self._manifests, requested)
        if error := self._refusal(found, requested):
            return Decision(error=error)
        for lost in found.passed:
            self._warn(f"{lost}: passed over")
        version = found.version
        if version is None:
            return Decision()
        manifest = self._manifests[version]
        unverified: tuple[tuple[str, ...], ...] = ()
        if version not in self._verified:
            self._verified.add(version)
            unverified = tuple(tuple(sorted(holding.get(version, ()))) for holding in self._holdings)
        return Decision(
            version,
            manifest,
            plan_transfers(self._holdings, version, manifest),
            tuple(version in holding for holding in self._holdings),
            unverified,
        )

    def _refusal(self, found: Assembly, requested: int | None) -> KeepstepError | None:
        """What stands against this choice; on the main process."""
        newest = -1 if found.version is None else found.version.step
        problems = [str(lost) for lost in found.passed]
        for host, held in zip(self._hosts.names, self._held, strict=True):
            for step, problem in held.too_new.items():
                if requested is None and step > newest:
                    return CouldNotLookError(f"{self._folder}/{layout.checkpoint_name(step)} on {host}: {problem}")
            problems += [f"save-{step} on {host}: {text}" for step, text in held.damaged.items() if step > newest]
        if requested is not None and found.version is None:
            there = ", ".join(map(str, found.possible)) or "none"
            lost = "".join(f"; {text}" for text in problems[:_SHOWN])
            return CheckpointNotFoundError(
                f"{self._folder}: step {requested} was asked for; steps that the hosts can put together: {there}{lost}"
            )
        if found.version is None and problems:
            return DamagedCheckpointError(
                f"{self._folder}: no checkpoint can be put together from what the hosts hold. "
                f"{'; '.join(problems[:_SHOWN])}. If the machines that held them come back, start the job with them"
            )
        if self._policy.stop and any(lost.version in self._damaged for lost in found.passed):
            return DamagedCheckpointError(
                f"{self._folder}: {problems[0]}; files of it are damaged. on_damage: fall_back takes the one before it"
            )
        return None

    def _verify(self, version: Version, manifest: Manifest, unverified: tuple[tuple[str, ...], ...]) -> None:
        """The ranks of each host look through what it holds. Bad files count as missing."""
        host = self._hosts.of(self._world.rank)
        ranks = self._hosts.ranks[host]
        shares = share_files([(name, manifest.files[name].size) for name in unverified[host]], len(ranks))
        own = shares[ranks.index(self._world.rank)]
        path = self._folder / layout.checkpoint_name(version.step)
        told = told_to_main(
            self._world, f"verifying {path}", lambda: [d.file for d in verify_files(path, manifest, own)], ResumeError
        )
        bad = [(self._hosts.of(rank), name) for rank, names in enumerate(told) for name in names]
        self._forget(version, bad, "is damaged")

    def _forget(self, version: Version, bad: list[tuple[int, str]], why: str) -> None:
        """These files on these hosts count as missing; on the main process."""
        if self._world.rank:
            return
        for host, name in bad:
            self._damaged.add(version)
            self._holdings[host][version].discard(name)
            self._warn(f"save-{version.step}: {name} on {self._hosts.names[host]} {why}")

    def _judge(self, found: Decision, step: int, judge: Judge) -> None:
        """Let the guard see the run record, from a host that has it, before anything is written."""
        lacking = {one.target for one in found.transfers if one.file == layout.RUN_RECORD}
        source = next(host for host in range(len(self._hosts.ranks)) if host not in lacking)
        path = self._folder / layout.checkpoint_name(step)
        is_source = self._world.rank == self._hosts.ranks[source][0]
        told = self._world.gather(read_true_record(path) if is_source else {})
        judge(step, f"{path} on {self._hosts.names[source]}", told[self._hosts.ranks[source][0]])

    def _warn(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            logger.warning(text)
