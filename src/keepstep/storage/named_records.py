"""What is known of checkpoints that have any name, as Lightning's: records in `.keepstep/files` of their folder,
several for a name.

A save has a number that no other save in the folder has. Its bytes lie under `.<name>.tmp-<number>` until they are
whole and on disk, then its record is written to `<name>.<number>.json`, and only then does it get its name. As long as
the temporary one is there the record is of a save that did not end: what has the name need not match it.
"""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from keepstep.errors import CouldNotLookError
from keepstep.plan import layout
from keepstep.plan.manifest import Manifest, ManifestError, from_text
from keepstep.storage.digest import digest_of_bytes
from keepstep.storage.plain import NotPlainError, read_plain

FOLDER = f"{layout.KEEPSTEP_FOLDER}/files"
# In a record: the content of a checkpoint that is one file. Its name may have letters that a manifest does not allow.
CONTENT = "content"
# Parts of Lightning's checkpoint without which a training cannot go on.
NEEDED_TO_TRAIN = "optimizer_states"
_RECORD = re.compile(r"(.+)\.([1-9][0-9]{0,17})(?:\.run)?\.json", re.DOTALL | re.ASCII)
_UNWANTED = re.compile(r"(.+)\.([1-9][0-9]{0,17})\.unwanted", re.DOTALL | re.ASCII)
_UNDER_WAY = re.compile(r"\.(.+)\.(tmp|del)-([1-9][0-9]{0,17})", re.DOTALL | re.ASCII)
_UNKNOWN = 1 << 63
_MAX_RECORD = 64 * 1024 * 1024


@dataclass(frozen=True)
class Record:
    """What was noted of one save.

    Attributes:
        name: the checkpoint's name in its folder.
        number: of the save.
        manifest: its content; None when the record itself is damaged.
        is_pending: whether its temporary file is still there.
    """

    name: str
    number: int
    manifest: Manifest | None
    is_pending: bool

    @property
    def order(self) -> tuple[int, int]:
        """By what the newest is chosen: steps, then the later save. One that cannot be read is looked at first."""
        return (_UNKNOWN if self.manifest is None else self.manifest.step, self.number)


def temporary_path(path: Path, number: int) -> Path:
    """Where the save with this number lies until it is whole."""
    return path.with_name(f".{path.name}.tmp-{number}")


def doomed_path(path: Path, number: int) -> Path:
    """What a folder is called while it is deleted."""
    return path.with_name(f".{path.name}.del-{number}")


def record_path(path: Path, number: int) -> Path:
    """Where the record of a save of `path` lies."""
    return path.parent / FOLDER / f"{path.name}.{number}.json"


def facts_path(path: Path, number: int) -> Path:
    """Where the run record of a save of `path` lies."""
    return path.parent / FOLDER / f"{path.name}.{number}.run.json"


def numbers(folder: Path) -> dict[str, list[int]]:
    """The numbers of the records in a folder, by the name of the checkpoint. Of a dead save there may be a part only.

    Raises:
        CouldNotLookError: it cannot be listed. A folder that is not there has none.
    """
    found: dict[str, set[int]] = {}
    for name in sorted(_names(folder / FOLDER)):
        if match := _RECORD.fullmatch(name):
            found.setdefault(match[1], set()).add(int(match[2]))
    return {name: sorted(found[name]) for name in found}


def under_way(folder: Path) -> list[tuple[str, int, bool]]:
    """Saves and deletions that have not ended: the checkpoint's name, the number, and whether it is a deletion.

    Raises:
        CouldNotLookError: it cannot be listed.
    """
    matches = [match for name in sorted(_names(folder)) if (match := _under_way(name))]
    return [(match[1], int(match[3]), match[2] == "del") for match in matches]


def records_of(path: Path) -> list[Record]:
    """The records of one checkpoint, the latest first.

    Raises:
        CouldNotLookError: they cannot be read.
    """
    return [
        Record(path.name, number, manifest, os.path.lexists(temporary_path(path, number)))
        for number in reversed(numbers(path.parent).get(path.name, []))
        for manifest in _read(record_path(path, number))
    ]


def names_in(folder: Path) -> list[str]:
    """What lies in a folder and could be a checkpoint: no link, since what it leads to counts itself.

    Raises:
        CouldNotLookError: it cannot be listed.
    """
    return sorted(name for name in _names(folder) if not _under_way(name) and not (folder / name).is_symlink())


def note_unwanted(path: Path, number: int) -> None:
    """Note that a checkpoint is to be deleted when nobody holds it any more. Raises OSError."""
    _unwanted_path(path, number).touch()


def drop_unwanted(path: Path, number: int) -> None:
    """Take that note back. Raises OSError."""
    _unwanted_path(path, number).unlink(missing_ok=True)


def unwanted(folder: Path) -> list[tuple[str, int]]:
    """Checkpoints that are to be deleted, each with the number of its record. Raises CouldNotLookError."""
    matches = [match for name in sorted(_names(folder / FOLDER)) if (match := _UNWANTED.fullmatch(name))]
    return [(match[1], int(match[2])) for match in matches]


def _unwanted_path(path: Path, number: int) -> Path:
    return path.parent / FOLDER / f"{path.name}.{number}.unwanted"


def drop(path: Path, number: int) -> None:
    """Delete a record, and the run record beside it."""
    for place in (record_path(path, number), facts_path(path, number)):
        with contextlib.suppress(FileNotFoundError):
            place.unlink()


def _under_way(name: str) -> re.Match[str] | None:
    # Those of `save-<step>` belong to a run of keepstep's own in the same folder.
    return None if layout.attempt_of(name) is not None else _UNDER_WAY.fullmatch(name)


def _read(place: Path) -> list[Manifest | None]:
    """The manifest in a record; None when it is damaged; nothing when it has gone meanwhile."""
    try:
        return [from_text(read_plain(place, _MAX_RECORD).decode(), digest_of_bytes)]
    except FileNotFoundError:
        return []
    except (ManifestError, UnicodeDecodeError, NotPlainError):
        return [None]
    except OSError as error:
        raise CouldNotLookError(f"cannot read {place}: {error}") from error


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CouldNotLookError(f"cannot look into {folder}: {error}; nothing was chosen or changed") from error
