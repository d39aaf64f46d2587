"""Sends files between hosts, so that each has a save whole, and puts it in place there. Collective."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from keepstep.checkpoint.claim import FolderClaim
from keepstep.checkpoint.peers.files import SentFile, TakenFile
from keepstep.checkpoint.save import discard, set_aside
from keepstep.dcp.writer import write_file
from keepstep.dist.agree import agreed, told_by_all
from keepstep.dist.wire import Wire
from keepstep.dist.world import World
from keepstep.errors import ResumeError
from keepstep.plan import layout
from keepstep.plan.assemble import Transfer
from keepstep.plan.hosts import Hosts
from keepstep.plan.manifest import Manifest, to_text
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.local import publish, remove_tree, sync_folder

logger = logging.getLogger("keepstep")


class Bringing:
    """One save, on its way to the hosts that lack it or parts of it.

    Args:
        folder: the run's folder.
        world: the ranks.
        hosts: of the job.
        wire: between the ranks.
        claim: the hold on the folders.
    """

    def __init__(self, folder: Path, world: World, hosts: Hosts, wire: Wire | None, claim: FolderClaim) -> None:
        self._folder, self._world, self._hosts, self._wire, self._claim = folder, world, hosts, wire, claim
        self._host = hosts.of(world.rank)
        self._leads = hosts.leads(world.rank)

    def bring(self, manifest: Manifest, transfers: Sequence[Transfer], present: Sequence[bool]) -> list[Transfer]:
        """Bring it, and put it in place where nothing went wrong.

        Args:
            manifest: of the save.
            transfers: who sends what.
            present: whether each host has committed it, and lacks some files only.

        Returns:
            Files that did not come as they were written: nothing was put in place then.

        Raises:
            ResumeError: a file cannot be written, or a rank is gone.
        """
        temporary = self._folder / layout.temporary_name(manifest.step, self._claim.attempt)
        final = self._folder / layout.checkpoint_name(manifest.step)
        own = [one for one in transfers if one.target == self._host]
        phase = f"bringing {final} to the hosts that lack it"
        try:
            with agreed(self._world, phase, ResumeError):
                if self._leads and own:
                    self._claim.confirm()
                    remove_tree(temporary)
                    temporary.mkdir()
            told = told_by_all(
                self._world, phase, lambda: self._exchange(manifest, transfers, final, temporary), ResumeError
            )
            bad = [transfers[number] for numbers in told for number in numbers]
            with agreed(self._world, phase, ResumeError):
                if self._leads and own and not bad:
                    self._put_in_place(manifest, own, temporary, final, is_present=present[self._host])
        finally:
            if self._leads and own:
                discard(temporary)
        if not bad and self._world.rank == 0:
            names = ", ".join(self._hosts.names[host] for host in sorted({one.target for one in transfers}))
            logger.info("%s was brought to %s: %d files", final.name, names, len(transfers))
        return bad

    def _exchange(self, manifest: Manifest, transfers: Sequence[Transfer], final: Path, temporary: Path) -> list[int]:
        """Send and take this rank's part. Returns the numbers of what came and is not as it was written."""
        assert self._wire is not None
        sends: dict[int, list[SentFile]] = {}
        takes: dict[int, list[TakenFile]] = {}
        numbered: list[tuple[int, TakenFile]] = []
        for number, one in enumerate(transfers):
            source, target = self._rank_of(one.source, number), self._rank_of(one.target, number)
            record = manifest.files[one.file]
            if source == self._world.rank:
                sends.setdefault(target, []).append(SentFile(final / one.file, record.size))
            elif target == self._world.rank:
                taken = TakenFile(temporary / one.file, record)
                takes.setdefault(source, []).append(taken)
                numbered.append((number, taken))
        try:
            self._wire.exchange(sends, takes)
        finally:
            for files in sends.values():
                for file in files:
                    file.close()
        for _, taken in numbered:
            if taken.problem is not None:
                raise taken.problem
        return [number for number, taken in numbered if not taken.is_good]

    def _rank_of(self, host: int, number: int) -> int:
        """The ranks of a host share the work."""
        ranks = self._hosts.ranks[host]
        return ranks[number % len(ranks)]

    def _put_in_place(
        self, manifest: Manifest, own: Sequence[Transfer], temporary: Path, final: Path, *, is_present: bool
    ) -> None:
        self._claim.confirm()
        if is_present:
            # The folder is a checkpoint with and without them: each takes its place alone.
            for one in own:
                os.replace(temporary / one.file, final / one.file)
            sync_folder(final)
            return
        write_file(temporary / layout.MANIFEST, to_text(manifest, digest_of_bytes).encode())
        sync_folder(temporary)
        if os.path.lexists(final):
            set_aside(self._folder, self._claim.attempt, final, "its name was needed for what the other hosts hold")
        publish(temporary, final)
