"""Where a watcher finds checkpoints: a run's folder, a folder of Lightning's, a mirror."""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Protocol

from keepstep.config.address import Address
from keepstep.errors import CheckpointNotFoundError, CouldNotLookError, MirrorError
from keepstep.ops.mirror.pull import pull
from keepstep.ops.place import survey_address
from keepstep.plan.layout import RUN_RECORD, SCORE_MARK
from keepstep.plan.lock import Claim
from keepstep.plan.manifest import Manifest, manifest_digest
from keepstep.plan.totals import total_steps_of
from keepstep.plan.trainer_files import STATE
from keepstep.plan.watch import Scorable
from keepstep.storage import named_records
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.exit_note import read_exit
from keepstep.storage.json_file import read_json
from keepstep.storage.leases import Lease, hold
from keepstep.storage.lock import look_at_lock
from keepstep.storage.naming import naming_in
from keepstep.storage.run_record import MAX_RECORD, parse_record, read_record
from keepstep.storage.survey import inspect, survey

logger = logging.getLogger("keepstep")


class Place(Protocol):
    """Checkpoints that may be scored."""

    def checkpoints(self) -> tuple[Scorable, ...]:
        """Those that are complete now. Raises CouldNotLookError."""

    def is_finished(self) -> bool:
        """Whether no more will come. Asked before `checkpoints`, so that none is missed. Raises CouldNotLookError."""

    def reading(self, checkpoint: Scorable) -> contextlib.AbstractContextManager[Path]:
        """A checkpoint to be read, which nobody deletes meanwhile. Raises CheckpointNotFoundError when it is gone."""

    def hold(self, checkpoints: Sequence[Scorable]) -> None:
        """Hold these back from retention, and no others any more."""


class _Leases:
    """Leases on what is to be scored. A folder that cannot be written is watched without."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[int, Lease] = {}

    def hold(self, checkpoints: Sequence[Scorable]) -> None:
        wanted = {one.step for one in checkpoints}
        for step in sorted(self._held.keys() - wanted):
            self._held.pop(step).release()
        try:
            for step in sorted(wanted - self._held.keys()):
                self._held[step] = Lease(self._folder, step)
        except OSError as error:
            logger.warning("checkpoints in %s cannot be held back from deletion: %s", self._folder, error)


class RunFolder(_Leases):
    """A folder of keepstep's or of a Trainer's.

    Args:
        folder: with `save-<step>` or `checkpoint-<step>` folders; it may come later.
    """

    def checkpoints(self) -> tuple[Scorable, ...]:
        found = survey(self._folder, naming_in(self._folder)).complete
        return tuple(_scorable(one.path, one.manifest) for one in found if one.manifest is not None)

    def is_finished(self) -> bool:
        if look_at_lock(self._folder)[0] is not Claim.GONE:
            return False
        complete = survey(self._folder, naming_in(self._folder)).complete
        if not complete:
            return False
        newest = complete[-1]
        state = read_json(newest.path / STATE)
        total = total_steps_of(read_record(newest.path)) or state.get("max_steps")
        return read_exit(self._folder).get("outcome") == "finished" or total == newest.found.step

    @contextlib.contextmanager
    def reading(self, checkpoint: Scorable) -> Iterator[Path]:
        with contextlib.ExitStack() as stack:
            path = self._folder / checkpoint.name
            try:
                path = stack.enter_context(hold(self._folder, checkpoint.step, naming=naming_in(self._folder)))
            except CheckpointNotFoundError:
                raise
            except OSError as error:
                logger.warning("%s cannot be held back from deletion: %s", path, error)
            manifest = inspect(path, checkpoint.step).manifest
            if manifest is None or manifest_digest(manifest, digest_of_bytes) != checkpoint.digest:
                raise CheckpointNotFoundError(f"{path} is gone, or another one has its name")
            yield path


class NamedFolder(_Leases):
    """A folder of Lightning's: checkpoints of any name, which have records."""

    def checkpoints(self) -> tuple[Scorable, ...]:
        found = []
        for name in named_records.names_in(self._folder):
            path = self._folder / name
            for record in named_records.records_of(path)[:1]:
                if record.manifest is not None and not record.is_pending and os.path.lexists(path):
                    found.append(_scorable(path, record.manifest))
        return tuple(sorted(found, key=lambda one: (one.step, one.name)))

    def is_finished(self) -> bool:
        return False  # Lightning does not tell

    @contextlib.contextmanager
    def reading(self, checkpoint: Scorable) -> Iterator[Path]:
        path = self._folder / checkpoint.name
        with contextlib.ExitStack() as stack:
            stack.callback(Lease(self._folder, checkpoint.step).release)
            if checkpoint not in self.checkpoints():
                raise CheckpointNotFoundError(f"{path} is gone, or another one has its name")
            yield path


class MirrorPlace:
    """A run on a mirror. Each checkpoint is fetched, every byte compared, and deleted here when it is scored.

    Args:
        address: of the run.
        scratch: where fetched ones lie meanwhile; None: where temporary files do.
    """

    def __init__(self, address: Address, scratch: Path | None = None) -> None:
        self._address, self._scratch = address, scratch

    def checkpoints(self) -> tuple[Scorable, ...]:
        found = survey_address(self._address)
        return tuple(
            Scorable(
                one.found.step,
                manifest_digest(one.manifest, digest_of_bytes),
                one.files.name,
                one.manifest.size,
                SCORE_MARK in one.sizes,
            )
            for one in found.complete
            if one.manifest is not None
        )

    def is_finished(self) -> bool:
        complete = survey_address(self._address).complete
        if not complete:
            return False
        try:
            record = parse_record(complete[-1].files.read(RUN_RECORD, MAX_RECORD))
        except OSError as error:
            raise CouldNotLookError(f"cannot read {complete[-1].files}/{RUN_RECORD}: {error}") from error
        return total_steps_of(record) == complete[-1].found.step

    @contextlib.contextmanager
    def reading(self, checkpoint: Scorable) -> Iterator[Path]:
        where = mkdtemp(prefix="keepstep-watch-", dir=self._scratch)
        try:
            pulled = pull(self._address.joined(checkpoint.name), Path(where) / "run").pulled[0]
            manifest = inspect(Path(pulled.path), checkpoint.step).manifest
            if manifest is None or manifest_digest(manifest, digest_of_bytes) != checkpoint.digest:
                raise CheckpointNotFoundError(f"another checkpoint has the name {self._address}/{checkpoint.name}")
            yield Path(pulled.path)
        finally:
            shutil.rmtree(where, ignore_errors=True)

    def hold(self, checkpoints: Sequence[Scorable]) -> None:
        if checkpoints:
            raise MirrorError(f"{self._address}: what lies on a mirror cannot be held back from its retention")


def place_for(place: Path | Address, scratch: Path | None = None) -> Place:
    """What a folder or an address is. Raises CouldNotLookError when it is a file."""
    if isinstance(place, Address):
        return MirrorPlace(place, scratch)
    if place.exists() and not place.is_dir():
        raise CouldNotLookError(f"{place} is no folder")
    return NamedFolder(place) if (place / named_records.FOLDER).is_dir() else RunFolder(place)


def _scorable(path: Path, manifest: Manifest) -> Scorable:
    digest = manifest_digest(manifest, digest_of_bytes)
    return Scorable(manifest.step, digest, path.name, manifest.size, (path / SCORE_MARK).exists())
