"""Brings a checkpoint from a mirror into the run's folder, where it is committed like any other."""

import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep.checkpoint.claim import FolderClaim
from keepstep.checkpoint.mirrors.offers import Offer
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import CouldNotLookError, DamagedCheckpointError, ResumeError
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.plan.manifest import Manifest, ManifestError, from_text
from keepstep.plan.sharing import share_files
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.local import make_folders, publish, remove_tree
from keepstep.storage.plain import NotPlainError
from keepstep.storage.quarantine import quarantine
from keepstep.storage.run_record import parse_record
from keepstep.storage.stores.meter import Meter
from keepstep.storage.transfer import pull_files, write_manifest

logger = logging.getLogger("keepstep")

_MAX_MANIFEST = 256 * 1024 * 1024
_MAX_RECORD = 64 * 1024 * 1024
_TOLD_SECONDS = 10.0


@dataclass(frozen=True)
class Looked:
    """A checkpoint on a mirror, looked into; on all ranks the same.

    Attributes:
        offer: which.
        manifest: its manifest.
        record: its run record; empty where that is not as it was written.
        problem: what is wrong with it; empty where nothing is known to be.
    """

    offer: Offer
    manifest: Manifest | None
    record: dict[str, Any]
    problem: str = ""


def look_into(offer: Offer, world: World) -> Looked:
    """Read manifest and run record of a checkpoint on a mirror. Collective; the main process asks.

    Raises:
        ResumeError: on all ranks: it cannot be asked.
    """
    looked = Looked(offer, None, {})
    with agreed(world, f"looking into {offer}", ResumeError):
        if world.rank == 0:
            looked = _look_into(offer)
    return world.broadcast(looked)


def _look_into(offer: Offer) -> Looked:
    files = offer.files()
    try:
        manifest = from_text(files.read(layout.MANIFEST, _MAX_MANIFEST).decode(), digest_of_bytes)
        data = files.read(layout.RUN_RECORD, _MAX_RECORD)
    except (FileNotFoundError, NotPlainError, ManifestError, UnicodeDecodeError) as error:
        return Looked(offer, None, {}, str(error))
    except OSError as error:
        raise CouldNotLookError(f"cannot read {offer}: {error.strerror or error}") from error
    record = manifest.files.get(layout.RUN_RECORD)
    if record is None or digest_of_bytes(data) != record.digest:
        return Looked(offer, manifest, {}, f"{layout.RUN_RECORD} is not as its manifest says")
    return Looked(offer, manifest, parse_record(data))


def fetch(looked: Looked, folder: Path, claim: FolderClaim, naming: Naming, world: World) -> str:
    """Download a checkpoint, each rank a share of its files, and commit it in the run's folder. Collective.

    Args:
        looked: the checkpoint.
        folder: the run's folder, which `claim` holds.
        claim: the hold on it.
        naming: how checkpoints are called.
        world: the ranks; they share the folder.

    Returns:
        What is wrong with the checkpoint on the mirror, on all ranks the same; empty when it is here now.

    Raises:
        ResumeError: on all ranks: the mirror cannot be asked, or the folder cannot be written.
    """
    manifest, offer = looked.manifest, looked.offer
    if manifest is None or looked.problem:
        return looked.problem or "it has no manifest"
    temporary = folder / naming.temporary_name(offer.copy.step, claim.attempt)
    if world.rank == 0:
        logger.info("fetching step %d (%.1f MB) from %s", offer.copy.step, offer.size / 1e6, offer)
    try:
        with agreed(world, f"making {temporary}", ResumeError):
            if world.rank == 0:
                remove_tree(temporary)
                make_folders(temporary)
        shares = share_files([(name, one.size) for name, one in manifest.files.items()], world.size)
        problem = ""
        with agreed(world, f"fetching {offer}", ResumeError):
            try:
                pull_files(offer.files(), manifest, shares[world.rank], temporary, _Progress(offer.size, world).meter())
            except DamagedCheckpointError as error:
                problem = str(error)
        if found := next((one for one in world.gather(problem) if one), ""):
            return found
        with agreed(world, f"committing what was fetched to {folder}", ResumeError):
            if world.rank == 0:
                write_manifest(offer.files(), temporary)
                claim.confirm()
                _free_name(folder, offer, claim, naming)
                publish(temporary, folder / naming.checkpoint_name(offer.copy.step))
    finally:
        if world.rank == 0:
            remove_tree(temporary)
    return ""


def _free_name(folder: Path, offer: Offer, claim: FolderClaim, naming: Naming) -> None:
    """What has the name is not whole, or of a line that was left: it is kept, out of the way."""
    present = folder / naming.checkpoint_name(offer.copy.step)
    if not os.path.lexists(present):
        return
    report = {"checkpoint": present.name, "step": offer.copy.step, "replaced_from": str(offer)}
    target = quarantine(folder, offer.copy.step, claim.attempt, report, naming)
    logger.warning("%s is not whole, and the one on the mirror takes its place: it lies in %s now", present, target)


class _Progress:
    """Tells of a long download now and then, on the main process."""

    def __init__(self, size: int, world: World) -> None:
        self._size, self._tells = -(-size // world.size), world.rank == 0
        self._got, self._told = 0, time.monotonic()

    def meter(self) -> Meter:
        return Meter(on_bytes=self._add)

    def _add(self, count: int) -> None:
        self._got += count
        if self._tells and time.monotonic() - self._told > _TOLD_SECONDS:
            self._told = time.monotonic()
            logger.info("fetched %.0f of %.0f MB", self._got / 1e6, self._size / 1e6)
