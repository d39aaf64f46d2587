"""What lies in a run's folder, told from names, manifests and file sizes alone."""

import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.plan import layout
from keepstep.plan.layout import Naming
from keepstep.plan.manifest import ForeignManifestError, Manifest, ManifestError, NewerManifestError, from_text
from keepstep.plan.resume import Condition, Found
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.plain import NotPlainError, read_plain
from keepstep.storage.reread import read_past_cache

logger = logging.getLogger("keepstep")

_MAX_MANIFEST = 256 * 1024 * 1024


@dataclass(frozen=True)
class SurveyedCheckpoint:
    """A `save-<step>` folder and what its manifest says; `manifest` is None when it has no valid one."""

    path: Path
    found: Found
    manifest: Manifest | None


@dataclass(frozen=True)
class Survey:
    """The content of a run's folder.

    Attributes:
        checkpoints: every `save-<step>` folder, oldest first, complete or not.
        leftovers: names of folders of saves or deletions that did not end.
        foreign: names of everything else. None of it is ever touched.
    """

    checkpoints: tuple[SurveyedCheckpoint, ...]
    leftovers: tuple[str, ...]
    foreign: tuple[str, ...]

    @property
    def complete(self) -> tuple[SurveyedCheckpoint, ...]:
        """The committed, complete checkpoints, oldest first."""
        return tuple(c for c in self.checkpoints if c.found.condition is Condition.COMPLETE)

    @property
    def last_attempt(self) -> int:
        """The highest attempt that left a trace, 0 if none did."""
        committed = [c.manifest.attempt for c in self.checkpoints if c.manifest is not None]
        return max([0, *committed, *(layout.attempt_of(name) or 0 for name in self.leftovers)])


def survey(folder: Path, naming: Naming = layout.NATIVE) -> Survey:
    """Look into a run's folder. A folder that does not exist is empty.

    Raises:
        CouldNotLookError: it is no folder, or it cannot be read. That is never taken for an empty folder.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        if os.path.islink(folder):
            raise CouldNotLookError(f"{folder} is a link to a folder that does not exist") from None
        return Survey((), (), ())
    except OSError as error:
        raise CouldNotLookError(f"cannot look for checkpoints in {folder}: {error}") from error
    checkpoints, leftovers, foreign = [], [], []
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            foreign.append(entry.name)
        elif (step := naming.step_of(entry.name)) is not None:
            checkpoints.append(inspect(Path(entry.path), step))
        elif layout.attempt_of(entry.name) is not None:
            leftovers.append(entry.name)
        elif entry.name != layout.KEEPSTEP_FOLDER:
            foreign.append(entry.name)
    return Survey(tuple(sorted(checkpoints, key=lambda c: c.found.step)), tuple(leftovers), tuple(foreign))


def last_attempt(folder: Path) -> int:
    """The highest attempt that left a trace in a run's folder, whatever its naming. Raises as `survey`."""
    return max(survey(folder, naming).last_attempt for naming in layout.NAMINGS)


def inspect(path: Path, step: int) -> SurveyedCheckpoint:
    """Judge one `save-<step>` folder by its manifest and the sizes of its files.

    Raises:
        CouldNotLookError: something in it cannot be read.
    """
    # Plain strings: a folder may hold thousands of checkpoints, and a Path costs more than the look at the file.
    prefix = f"{path}{os.sep}"
    try:
        manifest = _read_manifest(prefix + layout.MANIFEST)
    except FileNotFoundError:
        return SurveyedCheckpoint(path, Found(step, Condition.INCOMPLETE, "it has no manifest"), None)
    except NotPlainError as error:
        return SurveyedCheckpoint(path, Found(step, Condition.DAMAGED, f"manifest: {error}"), None)
    except OSError as error:
        raise CouldNotLookError(f"cannot read {path / layout.MANIFEST}: {error}") from error
    except ForeignManifestError as error:
        # Beside DCP's metadata it was ours once.
        condition = Condition.DAMAGED if (path / layout.METADATA).exists() else Condition.INCOMPLETE
        return SurveyedCheckpoint(path, Found(step, condition, str(error)), None)
    except NewerManifestError as error:
        return SurveyedCheckpoint(path, Found(step, Condition.TOO_NEW, str(error)), None)
    except ManifestError as error:
        is_empty = _is_empty(path / layout.MANIFEST)
        return SurveyedCheckpoint(path, Found(step, Condition.DAMAGED, f"manifest: {error}", may_grow=is_empty), None)
    if manifest.step != step:
        problem = f"its manifest is of step {manifest.step}"
        return SurveyedCheckpoint(path, Found(step, Condition.DAMAGED, problem), manifest)
    missing = []
    for parent in sorted({name.rpartition("/")[0] for name in manifest.files} - {""}):
        if found := _leads_elsewhere(path, parent):
            return SurveyedCheckpoint(path, Found(step, Condition.DAMAGED, f"{found} is no folder"), manifest)
    for name, record in manifest.files.items():
        try:
            status = os.lstat(prefix + name)
        except FileNotFoundError:
            missing.append(name)
            continue
        except OSError as error:
            raise CouldNotLookError(f"cannot look at {path / name}: {error}") from error
        if not stat.S_ISREG(status.st_mode):
            return SurveyedCheckpoint(path, Found(step, Condition.DAMAGED, f"{name} is no regular file"), manifest)
        if status.st_size != record.size:
            problem = f"{name} has {status.st_size} bytes, not {record.size}"
            grows = status.st_size < record.size
            return SurveyedCheckpoint(path, Found(step, Condition.DAMAGED, problem, may_grow=grows), manifest)
    if missing:
        problem = f"{missing[0]} is missing" + (f", and {len(missing) - 1} more files" if len(missing) > 1 else "")
        return SurveyedCheckpoint(path, Found(step, Condition.DAMAGED, problem, may_arrive=True), manifest)
    return SurveyedCheckpoint(path, Found(step, Condition.COMPLETE), manifest)


def _leads_elsewhere(path: Path, parent: str) -> str:
    """The first part of a folder inside a checkpoint that is there and no folder (a link, say); empty without one."""
    place = ""
    for part in parent.split("/"):
        place = f"{place}/{part}" if place else part
        try:
            mode = os.lstat(path / place).st_mode
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise CouldNotLookError(f"cannot look at {path / place}: {error}") from error
        if not stat.S_ISDIR(mode):
            return place
    return ""


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def _read_manifest(path: str) -> Manifest:
    data = read_plain(path, _MAX_MANIFEST)
    try:
        return _parsed(data)
    except ManifestError:
        # What was read may have been bad in memory only: the disk has the last word.
        again = read_past_cache(Path(path), 0, len(data))
        if again == data:
            raise
        manifest = _parsed(again)
    logger.warning("%s was read wrong once, then right from the disk: is the memory sound?", path)
    return manifest


def _parsed(data: bytes) -> Manifest:
    try:
        return from_text(data.decode(), digest_of_bytes)
    except UnicodeDecodeError:
        raise ManifestError("not text") from None
