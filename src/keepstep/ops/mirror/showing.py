"""Shows what one checkpoint at an address is: manifest, run record and indexes are read, and nothing else."""

import fnmatch
from typing import Any

from keepstep.config.address import Address
from keepstep.errors import CouldNotLookError
from keepstep.ops.lineage import follow
from keepstep.ops.place import open_stored
from keepstep.ops.show import Part, Shown, Tensor, describe, indexed, trainer_parts
from keepstep.plan import layout
from keepstep.storage.files import Files
from keepstep.storage.plain import NotPlainError
from keepstep.storage.run_record import MAX_RECORD, parse_record
from keepstep.storage.stored import StoredCheckpoint, StoredFiles
from keepstep.storage.stores.opening import open_store

# Each costs a request.
_MOST_PARENTS = 20


def show_stored(address: Address) -> Shown:
    """Describe one checkpoint. At most 20 parents are looked for; of a Trainer's checkpoint there are no tensors, since
    those stand in its large files.

    Raises:
        CheckpointNotFoundError: nothing is there.
        CouldNotLookError: the store cannot be asked.
    """
    found = open_stored(address)
    try:
        return describe(
            str(address),
            found.found,
            found.manifest,
            _content(found),
            read_stored_record(found.files),
            _parents(address, found.found.step),
        )
    except OSError as error:
        if isinstance(error, CouldNotLookError):
            raise
        raise CouldNotLookError(f"cannot read {address}: {error.strerror or error}") from error


def read_stored_record(files: Files) -> dict[str, Any]:
    """A run record in a store; empty when it is missing or none. Raises OSError."""
    try:
        return parse_record(files.read(layout.RUN_RECORD, MAX_RECORD))
    except (FileNotFoundError, NotPlainError):
        return {}


def _content(found: StoredCheckpoint) -> tuple[tuple[Part, ...], list[Tensor]]:
    if layout.naming_of(found.files.name) is layout.TRAINER:
        return trainer_parts(found.sizes), []
    return indexed(found.files, fnmatch.filter(found.sizes, "__*.index"))


def _parents(address: Address, step: int) -> tuple[str, ...]:
    if address.query:
        return ()  # it is signed for this checkpoint alone
    store, naming = open_store(address.parent), layout.naming_of(address.name) or layout.NATIVE

    def record_of(one: int) -> dict[str, Any]:
        try:
            return read_stored_record(StoredFiles(store, naming.checkpoint_name(one)))
        except PermissionError:
            return {}  # so answers a store that tells nobody whether something is there

    return follow(step, record_of, naming, None, _MOST_PARENTS)
