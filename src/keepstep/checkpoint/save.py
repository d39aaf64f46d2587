"""The save path. Read it from top to bottom: it is the order that makes a checkpoint trustworthy."""

import errno
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from keepstep.checkpoint.claim import FolderClaim
from keepstep.checkpoint.retaining import decide
from keepstep.checkpoint.snapshot import Snapshot
from keepstep.checkpoint.work_log import Work
from keepstep.dcp.fragments import MetadataParts
from keepstep.dcp.writer import Written, write_file, write_shard
from keepstep.dist.agree import agreed, told_to_main
from keepstep.dist.world import World
from keepstep.errors import RunInUseError, SaveError
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.plan.manifest import FileRecord, Manifest
from keepstep.plan.manifest import to_text as manifest_text
from keepstep.plan.policies import NO_RULES, Rules
from keepstep.plan.resume import Condition
from keepstep.plan.space import missing_bytes
from keepstep.provenance.record import to_text as record_text
from keepstep.storage.candidates import digest_of, digests_of
from keepstep.storage.deletion import delete_checkpoint
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.leases import leased_steps, pinned_steps
from keepstep.storage.local import exchange, free_bytes, make_folders, publish, remove_tree, sync_folder
from keepstep.storage.survey import SurveyedCheckpoint, inspect, survey
from keepstep.storage.waiting_note import note_waiting
from keepstep.storage.writer import Writer

logger = logging.getLogger("keepstep")


def nothing_waits(complete: Collection[SurveyedCheckpoint]) -> Collection[int]:
    """Of a run that has no mirrors."""
    return ()


@dataclass(frozen=True)
class SaveRequest:
    """One save.

    Attributes:
        folder: the run's folder.
        step: completed steps.
        claim: the hold on that folder, and the number of this attempt of the run.
        parent: the step that this attempt resumed from or saved last.
        resumed: whether this attempt has looked for checkpoints and begun where they ended.
        record: the run record's fields; the main process's count.
        components: names of the parts of the job's state.
        num_to_keep: how many checkpoints remain; None keeps all.
        rules: what remains beside those, and the most that all of it may take.
        protected: steps that remain in any case, beside the one that is saved.
        naming: how checkpoints are called in that folder.
        inner: name of a folder in the temporary one that becomes the checkpoint, where somebody else's code makes it.
        waiting: given the complete checkpoints, the steps of those that must stay until they are copied elsewhere. The
            disk may demand them all the same.
        work: what the attempt did until this save began; None where nobody has measured it.
        before_line: called on the main process before this save's line is written to `saves.jsonl`.
    """

    folder: Path
    step: int
    claim: FolderClaim
    parent: int | None
    resumed: bool
    record: Mapping[str, Any]
    components: tuple[str, ...]
    num_to_keep: int | None
    rules: Rules = NO_RULES
    protected: tuple[int, ...] = ()
    naming: Naming = layout.NATIVE
    inner: str = ""
    waiting: Callable[[Collection[SurveyedCheckpoint]], Collection[int]] = nothing_waits
    work: Work | None = None
    before_line: Callable[[], None] = lambda: None

    @property
    def attempt(self) -> int:
        return self.claim.attempt

    @property
    def temporary(self) -> Path:
        return self.folder / self.naming.temporary_name(self.step, self.attempt)

    @property
    def content(self) -> Path:
        return self.temporary / self.inner

    @property
    def final(self) -> Path:
        return self.folder / self.naming.checkpoint_name(self.step)


@dataclass(frozen=True)
class Saved:
    """What a save did. `shares` (of each rank) is empty but on the main process.

    Attributes:
        seconds: writing and committing, on this rank.
        commit_seconds: the part after the last rank had written.
    """

    step: int
    shares: tuple[Written, ...]
    seconds: float
    commit_seconds: float


class Placing(Protocol):
    """Where the files of a save lie: in one folder that all ranks share, or in one for each host. Collective but for
    `leads`."""

    def leads(self, rank: int) -> bool:
        """Whether this rank does what is done once in its folder."""

    def prepare(self, request: SaveRequest, size: int, world: World) -> None:
        """Make room and the temporary folder; `size` bytes come from this rank. Raises SaveError."""

    def copy(self, request: SaveRequest, own: Written, shares: list[Written], world: World) -> list[Written]:
        """Put what this rank has written where else it must lie. Returns the shares, on the main process. Raises
        SaveError."""

    def commit(self, request: SaveRequest, parts: MetadataParts, shares: Sequence[Written], world: World) -> None:
        """Complete the checkpoint and let it take its name. Raises SaveError."""

    def retain(self, request: SaveRequest, world: World) -> None:
        """Delete what the retention rule gives up; a failure of that warns."""


class OneFolder:
    """All ranks share the folder, and the main process does what is done once."""

    def leads(self, rank: int) -> bool:
        return rank == 0

    def prepare(self, request: SaveRequest, size: int, world: World) -> None:
        sizes = world.to_main(size)
        with agreed(world, phase_of(request, "preparing"), SaveError):
            if world.rank == 0:
                prepare(request, sum(sizes))

    def copy(self, request: SaveRequest, own: Written, shares: list[Written], world: World) -> list[Written]:
        return shares

    def commit(self, request: SaveRequest, parts: MetadataParts, shares: Sequence[Written], world: World) -> None:
        with agreed(world, phase_of(request, "committing"), SaveError):
            if world.rank == 0:
                _commit(request, parts, shares, world.size)

    def retain(self, request: SaveRequest, world: World) -> None:
        if world.rank == 0:
            apply_retention(request)


ONE_FOLDER = OneFolder()


def save(
    request: SaveRequest,
    snapshot: Snapshot,
    world: World,
    writer: Writer,
    parts: MetadataParts,
    placing: Placing = ONE_FOLDER,
) -> Saved:
    """Write and commit a snapshot. All ranks take part, in the foreground or in the background (`world` tells how).

    Args:
        request: what is saved where.
        snapshot: the state of all ranks at one step.
        world: how the ranks meet.
        writer: writes the shards.
        parts: what the main process knows of the files' content from earlier saves.
        placing: where the files lie.

    Raises:
        SaveError: on every rank, naming the rank that failed. Nothing was committed.
    """
    started = time.monotonic()
    own = Written()
    try:
        placing.prepare(request, snapshot.image.shard.size, world)

        def write() -> Written:
            nonlocal own
            written = write_shard(request.temporary, snapshot.image, writer, snapshot.fragment)
            own = replace(written, seconds={"snapshot": snapshot.seconds, **written.seconds})
            return own

        shares = told_to_main(world, phase_of(request, "writing shards"), write, SaveError)
        shares = placing.copy(request, own, shares, world)
        committing = time.monotonic()
        placing.commit(request, parts, shares, world)
    except BaseException:
        if placing.leads(world.rank):
            discard(request.temporary)
        raise
    finally:
        snapshot.image.release()
    saved = Saved(request.step, tuple(shares), time.monotonic() - started, time.monotonic() - committing)
    placing.retain(request, world)
    # Nobody goes on before the folder is as it will be.
    world.broadcast(None)
    return saved


def phase_of(request: SaveRequest, what: str) -> str:
    """How an error names what was being done."""
    return f"saving step {request.step} to {request.final}: {what}"


def prepare(request: SaveRequest, size: int) -> None:
    """Make room and the temporary folder of a save, on the main process. `size`: bytes that are known to be needed.

    Raises:
        OSError: there is no room, or the folder cannot be written.
        RunInUseError: another job has taken the folder.
    """
    request.claim.confirm()
    found = survey(request.folder, request.naming)
    for name in found.leftovers:
        attempt = layout.attempt_of(name)
        if attempt is not None and attempt <= request.attempt:
            discard(request.folder / name)
    for checkpoint in found.checkpoints:
        if _is_of_an_abandoned_line(request, checkpoint):
            set_aside(
                request.folder, request.attempt, checkpoint.path, f"this run went on from step {request.parent or 0}"
            )
    remove_tree(request.temporary)
    if missing_bytes(free_bytes(request.folder), size):
        _make_room(request, size)
    if missing := missing_bytes(free_bytes(request.folder), size):
        raise OSError(
            errno.ENOSPC,
            f"not enough space: this checkpoint takes {size:,} bytes, {missing:,} more than are free. Earlier "
            "checkpoints are untouched; free some space, or keep fewer (num_to_keep)",
            str(request.folder),
        )
    request.temporary.mkdir()


def _make_room(request: SaveRequest, size: int) -> None:
    """Delete what only waits to be copied elsewhere, oldest first, until `size` bytes fit: the next checkpoint is worth
    more."""
    complete = survey(request.folder, request.naming).complete
    spared = request.waiting(complete)
    pinned = pinned_steps(request.folder, digests_of(complete))
    leased = leased_steps(request.folder) - pinned
    held = leased | pinned
    verdicts = decide(
        request.folder, complete, request.num_to_keep, request.rules, request.protected, held, passing=leased
    )
    for verdict in verdicts:
        if verdict.keep or verdict.step not in spared:
            continue
        if not missing_bytes(free_bytes(request.folder), size):
            return
        if delete_checkpoint(request.folder, verdict.step, request.attempt, request.naming):
            logger.warning(
                "deleted %s before it was copied to the mirror: the disk has no room for step %d otherwise",
                request.naming.checkpoint_name(verdict.step),
                request.step,
            )


def _is_of_an_abandoned_line(request: SaveRequest, checkpoint: SurveyedCheckpoint) -> bool:
    """Whether a checkpoint lies beyond the point from which this run went on: since an earlier step was asked for, or
    since it is damaged. It must not be taken for the newest at the next start, nor crowd out newer work."""
    return (
        request.resumed
        and checkpoint.found.step > (request.parent or 0)
        and checkpoint.manifest is not None
        and checkpoint.manifest.attempt < request.attempt
    )


def _commit(request: SaveRequest, parts: MetadataParts, shares: Sequence[Written], world_size: int) -> None:
    folder = request.content
    files: dict[str, FileRecord] = {}
    for share in shares:
        files |= share.files
    metadata = parts.update([share.fragment for share in shares])
    files[layout.METADATA] = write_file(folder / layout.METADATA, metadata)
    seal(request, files, world_size)


def seal(request: SaveRequest, files: Mapping[str, FileRecord], world_size: int) -> None:
    """Write run record and manifest over durable files, and let the folder take its name: the commit.

    Args:
        request: the save; its temporary folder holds the files.
        files: all of them, with their digests.
        world_size: ranks that wrote them.

    Raises:
        OSError: nothing was committed.
        RunInUseError: another job has taken the folder.
    """
    folder, files = request.content, dict(files)
    record = record_text(request.record, step=request.step, attempt=request.attempt, parent=request.parent)
    files[layout.RUN_RECORD] = write_file(folder / layout.RUN_RECORD, record.encode())
    manifest = Manifest(request.step, request.attempt, world_size, request.components, files)
    write_file(folder / layout.MANIFEST, manifest_text(manifest, digest_of_bytes).encode())
    put_in_place(request, replaces=_is_complete(request) and not _is_pinned(request))


def put_in_place(request: SaveRequest, *, replaces: bool) -> None:
    """Let a finished folder take its name. `replaces`: a checkpoint has that name, and the new one is worth more.

    Raises:
        OSError: nothing was committed.
        RunInUseError: another job has taken the folder.
    """
    folder, final = request.content, request.final
    # Every name in the folder must be durable before the folder gets the name that makes it a checkpoint.
    sync_folder(folder)
    request.claim.confirm()
    if replaces and exchange(folder, final):
        try:
            sync_folder(final.parent)
        except OSError:
            exchange(folder, final)  # as in `publish`
            raise
        logger.warning("%s existed already; the new one has taken its place", final.name)
        discard(folder)
        return
    if os.path.lexists(final):
        set_aside(request.folder, request.attempt, final, "its name was needed for a new checkpoint")
    publish(folder, final)


def _is_complete(request: SaveRequest) -> bool:
    final = request.final
    is_folder = final.is_dir() and not final.is_symlink()
    return is_folder and inspect(final, request.step).found.condition is Condition.COMPLETE


def _is_pinned(request: SaveRequest) -> bool:
    """Whether what has the name so far is pinned: it is kept then, and the new checkpoint has no pin."""
    present = inspect(request.final, request.step)
    return request.step in pinned_steps(request.folder, lambda _: digest_of(present))


def set_aside(folder: Path, attempt: int, path: Path, why: str) -> None:
    """Take a folder out of the way and keep it: it may be the only copy of something."""
    aside = folder / layout.SET_ASIDE
    make_folders(aside)
    target = aside / f"{path.name}-{attempt}"
    while os.path.lexists(target):
        target = target.with_name(target.name + "x")
    path.rename(target)
    sync_folder(aside)
    sync_folder(path.parent)
    logger.warning("%s lies in %s now: %s", path, target, why)


def discard(path: Path) -> None:
    """Delete a folder; one that stays is a warning."""
    try:
        remove_tree(path)
    except OSError as error:
        logger.warning("could not delete %s (%s); the next save tries again", path, error)


def _note(folder: Path, waiting: Collection[int]) -> None:
    try:
        note_waiting(folder, waiting)
    except OSError as error:  # a full disk, say: what is deleted next makes room
        logger.warning("could not note what waits for its upload, which `keepstep prune` leaves alone: %s", error)


def apply_retention(request: SaveRequest) -> None:
    """Delete what the retention rule gives up. Only the main process calls it; a failure warns and never raises."""
    folder = request.folder
    may_delete = request.rules.may_delete(request.num_to_keep)
    if not may_delete and request.waiting is nothing_waits:
        return
    try:
        request.claim.confirm()
        complete = survey(folder, request.naming).complete
        waiting = frozenset(request.waiting(complete))
        _note(folder, waiting)
        if not may_delete:
            return
        protected = [request.step, *request.protected]
        pinned = pinned_steps(folder, digests_of(complete))
        passing = (leased_steps(folder) | waiting) - pinned
        verdicts = decide(
            folder,
            complete,
            request.num_to_keep,
            request.rules,
            protected,
            held=pinned | passing,
            newest=request.step,
            passing=passing,
        )
    except (OSError, RunInUseError) as error:
        logger.warning("could not look for old checkpoints in %s (%s); the next save tries again", folder, error)
        return
    for verdict in verdicts:
        if verdict.keep:
            continue
        name = request.naming.checkpoint_name(verdict.step)
        try:
            if delete_checkpoint(folder, verdict.step, request.attempt, request.naming):
                logger.info("deleted %s: %s", name, verdict.reason)
        except FileNotFoundError:
            logger.warning("%s was to be deleted (%s), and is gone already", name, verdict.reason)
        except OSError as error:
            logger.warning("could not delete %s (%s); the next save tries again", name, error)
