"""Where a watcher finds checkpoints: a run's folder (also of a Trainer, or of Lightning), or a mirror."""

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from keepstep.config.address import Address
from keepstep.errors import CheckpointNotFoundError, CouldNotLookError, MirrorError
from keepstep.ops.mirror.pull import pull
from keepstep.ops.place import survey_address
from keepstep.plan import layout
from keepstep.plan.layout import RUN_RECORD, SCORE_MARK
from keepstep.plan.manifest import Manifest, manifest_digest
from keepstep.plan.resume import Condition
from keepstep.plan.totals import total_steps_of
from keepstep.plan.trainer_files import STATE
from keepstep.plan.watch import Scorable
from keepstep.storage import named_records
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.exit_note import read_exit
from keepstep.storage.json_file import read_json
from keepstep.storage.leases import Lease
from keepstep.storage.lock import is_in_use
from keepstep.storage.naming import naming_in
from keepstep.storage.run_record import MAX_RECORD, parse_record, read_record
from keepstep.storage.save_log import SaveLog
from keepstep.storage.scratch import make_scratch
from keepstep.storage.survey import inspect, survey

logger = logging.getLogger("keepstep")

_ENDS = ("started", "stopped", "finished")


class Place(Protocol):
    """Checkpoints that may be scored. Several threads may ask."""

    def checkpoints(self) -> tuple[Scorable, ...]:
        """Those that are complete now. Raises CouldNotLookError."""

    def is_finished(self) -> bool:
        """Whether no more will come. Asked before `checkpoints`, so that none is missed. Raises CouldNotLookError."""

    def reading(self, checkpoint: Scorable) -> contextlib.AbstractContextManager[Path]:
        """A checkpoint to be read, which nobody deletes meanwhile. Raises CheckpointNotFoundError when it is gone."""

    def has(self, checkpoint: Scorable) -> bool:
        """Whether it is there, and no other has its name. Raises CouldNotLookError."""

    def hold(self, checkpoints: Sequence[Scorable]) -> None:
        """Hold these back from retention, and no others any more. To be said again within 15 seconds."""


class LocalPlace:
    """A folder of this machine. What it is shows when its first checkpoint comes, and a folder may come late itself.

    Args:
        folder: with `save-<step>` or `checkpoint-<step>` folders, or Lightning's checkpoints, which have records.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[int, Lease] = {}
        self._known: dict[tuple[str, int, int], Scorable] = {}
        self._lock = threading.Lock()

    def checkpoints(self) -> tuple[Scorable, ...]:
        found = self._named() if has_names(self._folder) else self._numbered()
        return tuple(sorted(found, key=lambda one: (one.step, one.name)))

    def has(self, checkpoint: Scorable) -> bool:
        if has_names(self._folder):
            return checkpoint.digest in {one.digest for one in self._named() if one.name == checkpoint.name}
        looked = inspect(self._folder / checkpoint.name, checkpoint.step)
        return looked.found.condition is Condition.COMPLETE and _digest(looked.manifest) == checkpoint.digest

    def _numbered(self) -> list[Scorable]:
        """Of a checkpoint that was whole at the last look only the manifest is looked at: nobody writes into it."""
        naming, known, found = naming_in(self._folder), {}, []
        try:
            names = os.listdir(self._folder)
        except OSError:
            survey(self._folder, naming)  # says why, or that there is nothing
            return []
        for name in names:
            step, path = naming.step_of(name), self._folder / name
            if step is None:
                continue
            try:
                stat = os.stat(path / layout.MANIFEST)
            except OSError:
                continue
            key = (name, stat.st_ino, stat.st_mtime_ns)
            one = self._known.get(key)
            if one is None:
                looked = inspect(path, step)
                if looked.found.condition is not Condition.COMPLETE or looked.manifest is None:
                    continue
                one = _scorable(path, looked.manifest)
            elif not one.marked:
                one = Scorable(one.step, one.digest, one.name, one.size, (path / SCORE_MARK).exists())
            known[key] = one
            found.append(one)
        self._known = known
        return found

    def _named(self) -> list[Scorable]:
        found = []
        for name in named_records.names_in(self._folder):
            path = self._folder / name
            for record in named_records.records_of(path)[:1]:
                if record.manifest is not None and not record.is_pending and os.path.lexists(path):
                    found.append(_scorable(path, record.manifest))
        return found

    def is_finished(self) -> bool:
        if is_in_use(self._folder):
            return False
        ends = [row["outcome"] for row in _log(self._folder) if row.get("outcome") in _ENDS]
        if read_exit(self._folder).get("outcome") == "finished" or ends[-1:] == ["finished"]:
            return True
        for newest in self.checkpoints()[-1:]:
            path = self._folder / newest.name
            total = total_steps_of(read_record(path)) or read_json(path / STATE).get("max_steps")
            return bool(total == newest.step)
        return False

    @contextlib.contextmanager
    def reading(self, checkpoint: Scorable) -> Iterator[Path]:
        path = self._folder / checkpoint.name
        with contextlib.ExitStack() as stack:
            try:
                stack.callback(Lease(self._folder, checkpoint.step).release)
            except OSError as error:
                logger.warning("%s cannot be held back from deletion: %s", path, error)
            # Looked for after the lease is there: whoever deletes looks for leases after it has renamed.
            if not self.has(checkpoint):
                raise CheckpointNotFoundError(f"{path} is gone, or another one has its name")
            yield path

    def hold(self, checkpoints: Sequence[Scorable]) -> None:
        wanted = {one.step for one in checkpoints}
        with self._lock:
            for step in sorted(self._held.keys() - wanted):
                self._held.pop(step).release()
            for lease in self._held.values():
                lease.renew()
            try:
                for step in sorted(wanted - self._held.keys()):
                    self._held[step] = Lease(self._folder, step, renews_itself=False)
            except OSError as error:
                logger.warning("checkpoints in %s cannot be held back from deletion: %s", self._folder, error)


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
            Scorable(one.found.step, _digest(one.manifest), one.files.name, one.manifest.size, SCORE_MARK in one.sizes)
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

    def has(self, checkpoint: Scorable) -> bool:
        return True  # what was scored is the copy, which nobody changes

    @contextlib.contextmanager
    def reading(self, checkpoint: Scorable) -> Iterator[Path]:
        try:
            where = make_scratch("keepstep-watch", self._scratch)
        except OSError as error:
            raise MirrorError(
                f"checkpoints cannot be fetched to {self._scratch or 'a temporary folder'}: {error}"
            ) from (error)
        try:
            pulled = pull(self._address.joined(checkpoint.name), where / "run").pulled[0]
            manifest = inspect(Path(pulled.path), checkpoint.step).manifest
            if manifest is None or _digest(manifest) != checkpoint.digest:
                raise CheckpointNotFoundError(f"another checkpoint has the name {self._address}/{checkpoint.name}")
            yield Path(pulled.path)
        finally:
            shutil.rmtree(where, ignore_errors=True)

    def hold(self, checkpoints: Sequence[Scorable]) -> None:
        if checkpoints:
            raise MirrorError(f"{self._address}: what lies on a mirror cannot be held back from its retention")


def place_for(place: Path | Address, scratch: Path | None = None) -> Place:
    """What a folder or an address is.

    Raises:
        CouldNotLookError: it is a file, or one checkpoint.
    """
    if isinstance(place, Address):
        if layout.any_step_of(place.name) is not None:
            raise CouldNotLookError(f"{place} is one checkpoint; give the address of its run")
        return MirrorPlace(place, scratch)
    if place.exists() and not place.is_dir():
        raise CouldNotLookError(f"{place} is no folder")
    if layout.any_step_of(place.resolve().name) is not None and (place / layout.MANIFEST).is_file():
        raise CouldNotLookError(f"{place} is one checkpoint; give the folder of its run")
    return LocalPlace(place)


def has_names(folder: Path) -> bool:
    """Whether checkpoints in a folder have any name, and records, as Lightning's have."""
    return (folder / named_records.FOLDER).is_dir()


def _log(folder: Path) -> list[dict[str, object]]:
    try:
        return SaveLog(folder).rows()
    except OSError:
        return []


def _digest(manifest: Manifest | None) -> str:
    return "" if manifest is None else manifest_digest(manifest, digest_of_bytes)


def _scorable(path: Path, manifest: Manifest) -> Scorable:
    return Scorable(manifest.step, _digest(manifest), path.name, manifest.size, (path / SCORE_MARK).exists())
