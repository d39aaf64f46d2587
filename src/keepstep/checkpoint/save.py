"""The save path. Read it from top to bottom: it is the order that makes a checkpoint trustworthy."""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from keepstep.dcp.entries import Entry
from keepstep.dcp.plan import agree_plan, plan_locally
from keepstep.dcp.writer import Written, write_file, write_metadata, write_shards
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import SaveError
from keepstep.plan import layout
from keepstep.plan.manifest import FileRecord, Manifest
from keepstep.plan.manifest import to_text as manifest_text
from keepstep.plan.resume import Condition
from keepstep.plan.retention import plan_retention
from keepstep.provenance.record import to_text as record_text
from keepstep.state.component import Component
from keepstep.state.job_state import collect
from keepstep.storage.deletion import delete_checkpoint
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.local import exchange, make_folders, publish, remove_tree, sync_folder
from keepstep.storage.survey import SurveyedCheckpoint, inspect, survey

logger = logging.getLogger("keepstep")

# Keys of the checkpoint itself, which no component owns.
STEP_KEY = "step"


@dataclass(frozen=True)
class SaveRequest:
    """One save.

    Attributes:
        folder: the run's folder.
        step: completed steps.
        attempt: this attempt of the run, as agreed by all ranks.
        parent: the step that this attempt resumed from or saved last.
        resumed: whether this attempt has looked for checkpoints and begun where they ended.
        record: the run record's fields; the main process's count.
    """

    folder: Path
    step: int
    attempt: int
    parent: int | None
    resumed: bool
    record: Mapping[str, Any]

    @property
    def temporary(self) -> Path:
        return self.folder / layout.temporary_name(self.step, self.attempt)

    @property
    def final(self) -> Path:
        return self.folder / layout.checkpoint_name(self.step)


def save(request: SaveRequest, components: Sequence[Component], world: World) -> None:
    """Write and commit one checkpoint. Collective; all ranks wait for each other before and after.

    Raises:
        SaveError: on every rank, naming the rank that failed. Nothing was committed.
    """
    started = time.monotonic()
    _meet(request, world)
    try:
        with agreed(world, _phase(request, "preparing"), SaveError):
            if world.rank == 0:
                _prepare(request)
        with agreed(world, _phase(request, "collecting the state"), SaveError):
            entries = collect(components)
            entries[STEP_KEY] = Entry(torch.tensor(request.step, dtype=torch.int64))
            local = plan_locally(entries, world)
        plan = agree_plan(local, world, _phase(request, "comparing what several ranks hold"))
        with agreed(world, _phase(request, "writing shards"), SaveError):
            written = write_shards(request.temporary, plan, world.rank)
        shares = world.gather(written)
        with agreed(world, _phase(request, "committing"), SaveError):
            if world.rank == 0:
                _commit(request, plan.metadata, shares, [c.name for c in components], world.size)
    except BaseException:
        if world.rank == 0:
            _discard(request.temporary)
        raise
    if world.rank == 0:
        size = sum(record.size for share in shares for record in share.files.values())
        seconds = time.monotonic() - started
        logger.info("saved step %d (%s, %.1f MB, %.2f s)", request.step, request.final, size / 1e6, seconds)


def _meet(request: SaveRequest, world: World) -> None:
    steps = world.gather(request.step)
    if len(set(steps)) > 1:
        at = ", ".join(f"rank {rank}: {step}" for rank, step in enumerate(steps))
        raise SaveError(f"the ranks want to save different steps ({at})", rank=0, phase="meeting")


def _phase(request: SaveRequest, what: str) -> str:
    return f"saving step {request.step} to {request.final}: {what}"


def _prepare(request: SaveRequest) -> None:
    make_folders(request.folder)
    found = survey(request.folder)
    for name in found.leftovers:
        attempt = layout.attempt_of(name)
        if attempt is not None and attempt <= request.attempt:
            _discard(request.folder / name)
    for checkpoint in found.checkpoints:
        if _is_of_an_abandoned_line(request, checkpoint):
            _set_aside(request, checkpoint.path, f"this run went on from step {request.parent or 0}")
    remove_tree(request.temporary)
    request.temporary.mkdir()


def _is_of_an_abandoned_line(request: SaveRequest, checkpoint: SurveyedCheckpoint) -> bool:
    """Whether a checkpoint lies beyond the point from which this run went on: since an earlier step was asked for, or
    since it is damaged. It must not be taken for the newest at the next start, nor crowd out newer work."""
    return (
        request.resumed
        and checkpoint.found.step > (request.parent or 0)
        and checkpoint.manifest is not None
        and checkpoint.manifest.attempt < request.attempt
    )


def _commit(
    request: SaveRequest, metadata: Any, shares: Sequence[Written], components: Sequence[str], world_size: int
) -> None:
    folder = request.temporary
    files: dict[str, FileRecord] = {}
    for share in shares:
        files |= share.files
    places = [place for share in shares for place in share.places]
    files[layout.METADATA] = write_metadata(folder, metadata, places)
    record = record_text(request.record, step=request.step, attempt=request.attempt, parent=request.parent)
    files[layout.RUN_RECORD] = write_file(folder / layout.RUN_RECORD, record.encode())
    manifest = Manifest(request.step, request.attempt, world_size, tuple(components), files)
    write_file(folder / layout.MANIFEST, manifest_text(manifest, digest_of_bytes).encode())
    # Every name in the folder must be durable before the folder gets the name that makes it a checkpoint.
    sync_folder(folder)
    final = request.final
    if _is_complete(request) and exchange(folder, final):
        sync_folder(final.parent)
        logger.warning("save-%d existed already; the new one has taken its place", request.step)
        _discard(folder)
        return
    if os.path.lexists(final):
        _set_aside(request, final, "its name was needed for a new checkpoint")
    publish(folder, final)


def _is_complete(request: SaveRequest) -> bool:
    final = request.final
    is_folder = final.is_dir() and not final.is_symlink()
    return is_folder and inspect(final, request.step).found.condition is Condition.COMPLETE


def _set_aside(request: SaveRequest, path: Path, why: str) -> None:
    """Take a folder out of the way and keep it: it may be the only copy of something."""
    aside = request.folder / layout.KEEPSTEP_FOLDER / "set-aside"
    make_folders(aside)
    target = aside / f"{path.name}-{request.attempt}"
    while os.path.lexists(target):
        target = target.with_name(target.name + "x")
    path.rename(target)
    sync_folder(aside)
    sync_folder(path.parent)
    logger.warning("%s lies in %s now: %s", path, target, why)


def _discard(path: Path) -> None:
    try:
        remove_tree(path)
    except OSError as error:
        logger.warning("could not delete %s (%s); the next save tries again", path, error)


def apply_retention(folder: Path, num_to_keep: int | None, just_saved: int, attempt: int) -> None:
    """Delete what the retention rule gives up. Only the main process calls it; a failure warns and never raises."""
    if num_to_keep is None:
        return
    try:
        committed = [c.found.step for c in survey(folder).complete]
        for verdict in plan_retention(committed, num_to_keep, protected=[just_saved]):
            if not verdict.keep:
                delete_checkpoint(folder, verdict.step, attempt)
                logger.info("deleted save-%d: %s", verdict.step, verdict.reason)
    except OSError as error:
        logger.warning("could not delete old checkpoints in %s (%s); the next save tries again", folder, error)
