"""Whether a checkpoint of Lightning's is what was written: its bytes against its records."""

import os
import stat
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.plan.manifest import Manifest
from keepstep.storage.named_records import CONTENT, Record, records_of
from keepstep.storage.verify import verify_files

# A file that is saved anew while it is judged matches no record that was read before.
_TRIES = 5


class Judged(Enum):
    """What a checkpoint is: as it was written, changed since, of somebody else (without a record), or not there."""

    GOOD = "good"
    DAMAGED = "damaged"
    FOREIGN = "foreign"
    GONE = "gone"


@dataclass(frozen=True)
class Verdict:
    """What a checkpoint is, the record that it matches when it is good, and what is wrong when it is damaged."""

    judged: Judged
    record: Record | None = None
    problem: str = ""


def judge(path: Path) -> Verdict:
    """Read a checkpoint, a file or a folder, and compare it with its records.

    Raises:
        CouldNotLookError: it, or what is known of it, cannot be read. That is no damage.
    """
    for _ in range(_TRIES):
        before = _stamp(path)
        if before is None:
            return Verdict(Judged.GONE)
        records = records_of(path)
        problems = []
        for record in records:
            problem = _problem(path, record.manifest)
            if not problem:
                return Verdict(Judged.GOOD, record)
            if not record.is_pending:
                problems.append(problem)
        if _stamp(path) == before and records == records_of(path):
            return Verdict(Judged.DAMAGED, problem=problems[0]) if problems else Verdict(Judged.FOREIGN)
    raise CouldNotLookError(f"{path} changes while it is read; does another job write to the same folder?")


def matches(path: Path, record: Record) -> bool:
    """Whether what has this name now is what the record is of."""
    return _stamp(path) is not None and not _problem(path, record.manifest)


def _problem(path: Path, manifest: Manifest | None) -> str:
    if manifest is None:
        return "its record in .keepstep is damaged"
    if CONTENT in manifest.files:
        single = Manifest(
            manifest.step, manifest.attempt, manifest.world_size, (), {path.name: manifest.files[CONTENT]}
        )
        damage = verify_files(path.parent, single, [path.name])
        return damage[0].problem if damage else ""
    if not path.is_dir():
        return "it is no folder"
    damage = verify_files(path, manifest, list(manifest.files))
    return str(damage[0]) if damage else ""


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CouldNotLookError(f"cannot look at {path}: {error}") from error
    # The content of a folder may change without its times; its files have none that are replaced.
    size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
    return found.st_ino, size, found.st_mtime_ns
