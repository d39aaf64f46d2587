"""A checkpoint on a mirror as one side of a comparison: indexes are read, and what parts of shards are asked for."""

from dataclasses import replace
from functools import partial
from typing import Any

from keepstep.config.address import Address
from keepstep.errors import CheckpointNotFoundError, ConfigError, CouldNotLookError, DamagedCheckpointError
from keepstep.ops.mirror.showing import read_stored_record
from keepstep.ops.place import open_stored
from keepstep.ops.tensor_source import DataFile, Side, side_of
from keepstep.plan import layout
from keepstep.plan.evidence import Digests
from keepstep.plan.resume import Condition
from keepstep.storage.stored import StoredFiles


def stored_side(address: Address) -> Side:
    """Look into a committed `save-<step>` in a store.

    Raises:
        ConfigError: it is a Trainer's.
        CheckpointNotFoundError: nothing is there, or it was not committed.
        DamagedCheckpointError: a file is missing, or an index is not as it was written.
        CouldNotLookError: the store cannot be asked.
    """
    if layout.naming_of(address.name) is layout.TRAINER:
        raise ConfigError(f"{address}: a Trainer's checkpoint is compared in a folder: keepstep pull {address} FOLDER")
    found = open_stored(address)
    problem = found.found.problem
    if found.manifest is None and found.found.condition is Condition.INCOMPLETE:
        raise CheckpointNotFoundError(f"{address}: no committed checkpoint ({problem}); see keepstep ls")
    if found.manifest is None or found.found.condition is not Condition.COMPLETE:
        raise DamagedCheckpointError(f"{address} cannot be compared: {problem}; see keepstep verify {address}")
    side = side_of(found.files, found.manifest, _record(found.files), partial(_locate, found.files))
    return replace(side, is_far=True)


def _locate(files: StoredFiles, name: str, size: int, digests: Digests) -> DataFile:
    return DataFile(name, f"{files}/{name}", size, digests, partial(files.open, name))


def _record(files: StoredFiles) -> dict[str, Any]:
    try:
        return read_stored_record(files)
    except OSError as error:
        raise CouldNotLookError(f"cannot read {files}/{layout.RUN_RECORD}: {error.strerror or error}") from error
