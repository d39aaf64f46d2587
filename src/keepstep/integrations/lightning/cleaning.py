"""Takes away checkpoints of Lightning's, and what saves that died have left."""

import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

from keepstep.integrations.lightning.verdict import matches
from keepstep.storage import named_records as records
from keepstep.storage.leases import held_steps
from keepstep.storage.local import remove_tree, sync_folder

logger = logging.getLogger("keepstep")


def held(path: Path) -> int:
    """Hold a file or folder for as long as the descriptor that is returned is open; where that works, others can tell.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        logger.info("%s cannot be held: %s", path, error)
    return descriptor


def clean(folder: Path) -> None:
    """Delete temporary files of saves whose process is gone, and records of checkpoints that are gone.

    What cannot be deleted stays: it harms nothing.

    Raises:
        CouldNotLookError: the folder cannot be listed.
    """
    for name, number, is_deletion in records.under_way(folder):
        try:
            if is_deletion:
                remove_tree(records.doomed_path(folder / name, number))
            else:
                _abandon_dead(folder / name, number)
        except OSError as error:
            logger.info("what a save of %s has left stays: %s", folder / name, error)
    for name, number in records.unwanted(folder):
        with suppress(OSError):
            _remove_unwanted(folder / name, number)
    for name, numbers in records.numbers(folder).items():
        for number in numbers:
            with suppress(OSError):
                _drop_without_checkpoint(folder / name, number)


def abandon(path: Path, number: int) -> None:
    """Take away what a save has written that did not end. When its checkpoint has its name, that stays.

    Raises:
        OSError: it cannot be deleted.
    """
    scratch = records.temporary_path(path, number)
    if not os.path.lexists(scratch):
        return
    # A folder changes places with the one of its name: then it is the old one that lies here.
    if scratch.is_dir() and any(one.number == number and matches(path, one) for one in records.records_of(path)):
        scratch = scratch.rename(records.doomed_path(path, number))
    else:
        # The record first: one without its temporary file would speak of what has the name.
        records.drop(path, number)
    remove_tree(scratch)


def remove(path: Path) -> bool:
    """Delete a checkpoint, then its records; what is gone already is fine. One that a reader holds is deleted by a save
    that comes when it is held no more.

    Returns:
        False where a reader holds it.

    Raises:
        OSError: it cannot be deleted.
    """
    found = records.records_of(path)
    if found and _is_held(path, found[0]):
        records.note_unwanted(path, found[0].number)
        return False
    numbers = records.numbers(path.parent).get(path.name, [])
    doomed = records.doomed_path(path, max(numbers, default=1))
    if os.path.lexists(path):
        remove_tree(doomed)
        path.rename(doomed)
        # Asked again after the rename: a reader that comes from now on finds nothing to hold.
        if found and _is_held(path, found[0]):
            doomed.rename(path)
            records.note_unwanted(path, found[0].number)
            return False
        # Before its files go: a power cut must not bring it back without them.
        sync_folder(path.parent)
        remove_tree(doomed)
    # A file that a power cut brings back must have its record still.
    if path.parent.is_dir():
        sync_folder(path.parent)
    for number in numbers:
        records.drop(path, number)
    return True


def _is_held(path: Path, record: records.Record) -> bool:
    return record.manifest is not None and record.manifest.step in held_steps(path.parent)


def _remove_unwanted(path: Path, number: int) -> None:
    # Saved anew under its name, it is another one, and wanted.
    if number != max(records.numbers(path.parent).get(path.name, []), default=0) or remove(path):
        records.drop_unwanted(path, number)


def _abandon_dead(path: Path, number: int) -> None:
    descriptor = os.open(records.temporary_path(path, number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        abandon(path, number)
    finally:
        os.close(descriptor)


def _drop_without_checkpoint(path: Path, number: int) -> None:
    # Asked first: a save gives its temporary file the name when its record is there.
    if os.path.lexists(records.temporary_path(path, number)):
        return
    if not os.path.lexists(path) or not records.record_path(path, number).exists():
        records.drop(path, number)
