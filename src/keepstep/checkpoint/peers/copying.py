"""The save path where each host has a folder of its own: what differs from that of `save.py`.

The order: every rank has written its files; each has a copy of its peer's; each leader has put `.metadata`, run record
and manifest beside them and synced them, the same bytes on all hosts; then, and not before, the folders take their
names. A job that dies between two of those renames leaves a save that some hosts have and others have not: a resume
takes it where the hosts that have it hold all of it, and the one before it otherwise.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from keepstep.checkpoint.peers.files import SentFile, TakenFile
from keepstep.checkpoint.peers.retaining import retain
from keepstep.checkpoint.save import SaveRequest, phase_of, prepare, put_in_place
from keepstep.dcp.fragments import MetadataParts
from keepstep.dcp.writer import Written, write_file
from keepstep.dist.agree import agreed, told_to_main
from keepstep.dist.wire import Wire
from keepstep.dist.world import World
from keepstep.errors import SaveError
from keepstep.plan import layout
from keepstep.plan.hosts import Hosts
from keepstep.plan.manifest import FileRecord, Manifest, to_text
from keepstep.provenance.record import to_text as record_text
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.survey import inspect

logger = logging.getLogger("keepstep")


class FolderPerHost:
    """Each leader does for its host's folder what the main process does for one that is shared (see `save.Placing`).

    Args:
        hosts: of the job.
        wire: between the ranks; None on a lone host.
    """

    def __init__(self, hosts: Hosts, wire: Wire | None) -> None:
        self._hosts, self._wire = hosts, wire

    def leads(self, rank: int) -> bool:
        return self._hosts.leads(rank)

    def prepare(self, request: SaveRequest, size: int, world: World) -> None:
        sizes = world.gather(size)
        own = self._hosts.ranks[self._hosts.of(world.rank)]
        needed = sum(sizes[rank] + sum(sizes[other] for other in self._hosts.senders(rank)) for rank in own)
        with agreed(world, phase_of(request, "preparing"), SaveError):
            if self.leads(world.rank):
                prepare(request, needed)

    def copy(self, request: SaveRequest, own: Written, shares: list[Written], world: World) -> list[Written]:
        started = time.monotonic()
        told = world.gather(own.files)
        copied = told_to_main(
            world,
            phase_of(request, "copying to the peers"),
            lambda: (self._exchange(request, told, world.rank), time.monotonic() - started),
            SaveError,
        )
        return [
            replace(share, copied=size, seconds={**share.seconds, "copy": seconds})
            for share, (size, seconds) in zip(shares, copied, strict=True)
        ]

    def _exchange(self, request: SaveRequest, told: Sequence[dict[str, FileRecord]], rank: int) -> int:
        """Returns the bytes of what this rank keeps for others."""
        peer = self._hosts.peer(rank)
        if self._wire is None or peer is None:
            return 0
        folder = request.temporary
        sent = [SentFile(folder / name, record.size) for name, record in told[rank].items()]
        taken = {
            other: [TakenFile(folder / name, record) for name, record in told[other].items()]
            for other in self._hosts.senders(rank)
        }
        try:
            self._wire.exchange({peer: sent}, taken)
        finally:
            for file in sent:
                file.close()
        for file in sent:
            if file.problem is not None:
                raise file.problem
        for other, files in taken.items():
            for one in files:
                if one.problem is not None:
                    raise one.problem
                if not one.is_good:
                    raise OSError(f"{one.path.name} did not come from rank {other} as that has written it")
        return sum(one.size for files in taken.values() for one in files)

    def commit(self, request: SaveRequest, parts: MetadataParts, shares: Sequence[Written], world: World) -> None:
        small: dict[str, bytes] = {}
        with agreed(world, phase_of(request, "completing"), SaveError):
            if world.rank == 0:
                small = _small_files(request, parts, shares, world.size)
        small = world.broadcast(small)
        with agreed(world, phase_of(request, "sealing"), SaveError):
            if self.leads(world.rank):
                for name, data in small.items():
                    write_file(request.content / name, data)
        # Only now: a leader that renamed before another has everything could leave a save of which files are nowhere.
        with agreed(world, phase_of(request, "committing"), SaveError):
            if self.leads(world.rank):
                final = request.final
                is_folder = final.is_dir() and not final.is_symlink()
                is_there = is_folder and inspect(final, request.step).manifest is not None
                put_in_place(request, replaces=is_there)

    def retain(self, request: SaveRequest, world: World) -> None:
        retain(request, self._hosts, world)


def _small_files(
    request: SaveRequest, parts: MetadataParts, shares: Sequence[Written], world_size: int
) -> dict[str, bytes]:
    """What the main process makes; the manifest last."""
    record = record_text(request.record, step=request.step, attempt=request.attempt, parent=request.parent)
    small = {layout.METADATA: parts.update([share.fragment for share in shares]), layout.RUN_RECORD: record.encode()}
    files = {name: one for share in shares for name, one in share.files.items()}
    files |= {name: FileRecord(len(data), digest_of_bytes(data)) for name, data in small.items()}
    manifest = Manifest(request.step, request.attempt, world_size, request.components, files)
    return {**small, layout.MANIFEST: to_text(manifest, digest_of_bytes).encode()}
